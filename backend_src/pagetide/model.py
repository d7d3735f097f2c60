"""The decoder: embed, then attend and feed forward, layer by layer, then score the sampled rows.

One forward for every family; `pagetide.family.Family` says what the parts are, `pagetide.weights` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagetide.family import Family
from pagetide.layers import Attention, AttentionBatch, Embedding, GatedMLP, Head, Layer, Rotary, Rotation


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A residual layer. A norm a family lacks is the identity; `rope` is its rotary embedding's index."""

    attn_in: Layer
    attention: Attention
    attn_out: Layer
    ffn_in: Layer
    ffn: GatedMLP
    ffn_out: Layer
    rope: int = 0

    def __call__(
        self, hidden: torch.Tensor, rotation: Rotation, kv_cache: torch.Tensor, batch: AttentionBatch
    ) -> torch.Tensor:
        hidden = hidden + self.attn_out(self.attention(self.attn_in(hidden), rotation, kv_cache, batch))
        return hidden + self.ffn_out(self.ffn(self.ffn_in(hidden)))


class Stack(Protocol):
    """Takes hidden states [T, hidden] through all layers; it may change them in place."""

    def __call__(
        self,
        hidden: torch.Tensor,
        rotations: Sequence[Rotation],
        kv_caches: Sequence[torch.Tensor],
        batch: AttentionBatch,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerByLayer:
    """The stack as it reads, on any device; what other stacks are held to."""

    layers: tuple[DecoderLayer, ...]

    def __call__(
        self,
        hidden: torch.Tensor,
        rotations: Sequence[Rotation],
        kv_caches: Sequence[torch.Tensor],
        batch: AttentionBatch,
    ) -> torch.Tensor:
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            hidden = layer(hidden, rotations[layer.rope], kv_cache, batch)
        return hidden


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A loaded model, ready to run. `stack` runs `layers`.

    `content_id` names its weights: with equal ids, equal tokens have equal KV.
    """

    config: Family
    content_id: bytes
    dtype: torch.dtype
    device: torch.device
    embedding: Embedding
    rotaries: tuple[Rotary, ...]
    layers: tuple[DecoderLayer, ...]
    stack: Stack
    norm: Layer
    head: Head

    @torch.inference_mode()
    def states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[torch.Tensor],
        batch: AttentionBatch,
    ) -> torch.Tensor:
        """Runs T tokens and returns what the last layer makes of them, [T, hidden] in the decoder's dtype.

        `token_ids` and `positions` are [T] int64; `kv_caches` holds one [blocks, 2, Hkv, 16, D] a layer,
        in the decoder's dtype, which receives the tokens' keys and values at `batch.slots`.
        """
        rotations = [rotary(positions) for rotary in self.rotaries]
        return self.stack(self.embedding(token_ids), rotations, kv_caches, batch)

    @torch.inference_mode()
    def score(self, states: torch.Tensor) -> torch.Tensor:
        """The float32 logits [S, V] after the tokens of `states` [S, hidden], a row of `states()` each."""
        return self.head(self.norm(states))

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[torch.Tensor],
        batch: AttentionBatch,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        """As `states`, and the float32 logits [S, V] of those tokens that `rows` [S] int64 picks."""
        return self.score(self.states(token_ids, positions, kv_caches, batch)[rows])
