"""The decoder: embed, then attend and feed forward, layer by layer, then score the sampled rows.

One forward for every family; `pagetide.family.Family` says what the parts are, `pagetide.weights` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pagetide.family import Family
from pagetide.layers import Attention, AttentionBatch, Embedding, GatedMLP, Head, Norm, Rotary, Rotation
from pagetide_kernels import ops


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A residual layer. A norm a family lacks is NO_NORM; `rope` is its rotary embedding's index.

    What a sublayer adds to the hidden states is added with the norm that follows, so a layer gets the
    change that is still to be added, adds it in place, and returns its own.
    """

    attn_in: Norm
    attention: Attention
    attn_out: Norm
    ffn_in: Norm
    ffn: GatedMLP
    ffn_out: Norm
    rope: int = 0

    def __call__(
        self,
        hidden: torch.Tensor,
        change: torch.Tensor | None,
        rotation: Rotation,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
    ) -> torch.Tensor:
        normed = self.attn_in.after_adding(hidden, change)
        change = self.attn_out(self.attention(normed, rotation, kv_cache, batch))
        normed = self.ffn_in.after_adding(hidden, change)
        return self.ffn_out(self.ffn(normed))


@dataclass(frozen=True, slots=True)
class Body:
    """What lies between the embedding and the head."""

    rotaries: tuple[Rotary, ...]
    layers: tuple[DecoderLayer, ...]
    norm: Norm


class Stack(Protocol):
    """Takes hidden states [T, hidden] of tokens at `positions` [T] int64 through a body.

    It may change them in place. Returns the states, [T, hidden], or [W, hidden] of the tokens `wanted` [W]
    int64, which rise.
    """

    def __call__(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[torch.Tensor],
        batch: AttentionBatch,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerByLayer:
    """The stack as it reads, on any device; what other stacks are held to."""

    body: Body

    def __call__(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[torch.Tensor],
        batch: AttentionBatch,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rotations = [rotary(positions) for rotary in self.body.rotaries]
        change = None
        for layer, kv_cache in zip(self.body.layers, kv_caches, strict=True):
            change = layer(hidden, change, rotations[layer.rope], kv_cache, batch)
        hidden = hidden if change is None else hidden.add_(change)
        if wanted is not None:
            if not len(wanted):
                return hidden[:0]
            hidden = ops.gather_rows(hidden, wanted)
        return self.body.norm(hidden)


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A loaded model, ready to run. `stack` runs `body`.

    `content_id` names its weights and how KV is kept: with equal ids, equal tokens have equal KV.
    `kv_dtype` is what the KV cache holds: `dtype`, or float8_e4m3fn, or int8.
    """

    config: Family
    content_id: bytes
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device
    embedding: Embedding
    body: Body
    stack: Stack
    head: Head

    @torch.inference_mode()
    def states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[torch.Tensor],
        batch: AttentionBatch,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Runs T tokens and returns what the last norm makes of them, [T, hidden] in the decoder's dtype, or
        [W, hidden] of the tokens `wanted` [W] int64 alone, which rise.

        `token_ids` and `positions` are [T] int64; `kv_caches` holds one a layer, of `kv_dtype` and of
        `ops.kv_cache_shape`, which receives the tokens' keys and values at `batch.slots`.
        """
        return self.stack(self.embedding(token_ids), positions, kv_caches, batch, wanted)

    @torch.inference_mode()
    def score(self, states: torch.Tensor) -> torch.Tensor:
        """The float32 logits [S, V] after the tokens of `states` [S, hidden], a row of `states()` each."""
        return self.head(states)

    @torch.inference_mode()
    def likeliest(self, states: torch.Tensor) -> torch.Tensor:
        """The likeliest token [S] int64 after each: `ops.likeliest` of `score`, for less."""
        return self.head.likeliest(states)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[torch.Tensor],
        batch: AttentionBatch,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        """As `states` of the tokens `rows` [S] int64, which rise: their float32 logits [S, V]."""
        return self.score(self.states(token_ids, positions, kv_caches, batch, rows))
