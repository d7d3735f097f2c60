"""Checkpoints to decoders: check the tensors' shapes, cut a rank's share, fuse, place on the device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from pagetide.checkpoint import WeightsError, is_gguf, locate
from pagetide.checkpoint_gguf import GgufCheckpoint
from pagetide.checkpoint_hf import HuggingFaceCheckpoint
from pagetide.compiled import stack_for
from pagetide.cuts import Axis, Parts, share, whole
from pagetide.family import Family
from pagetide.layers import (
    NO_NORM,
    Attention,
    Embedding,
    GatedMLP,
    Head,
    Layer,
    LinearFactory,
    Norm,
    PackedLinear,
    QuantisedLinear,
    RMSNorm,
    Rotary,
    Table,
    linear_for,
)
from pagetide.model import Body, Decoder, DecoderLayer
from pagetide.quantisation import BITS, HEAD_BITS, joined
from pagetide_kernels.ops import QuantisedWeight, quantise
from pagetide_kernels.signatures import GROUP

__all__ = ["Checkpoint", "WeightsError", "load", "open_checkpoint"]

_HASH_THREADS = 4
_HASH_BUFFER_BYTES = 2**20


class Checkpoint(Protocol):
    """Tensors by their Hugging Face names, whatever the file format. Errors are WeightsError."""

    family: Family
    files: Sequence[Path]

    def file_of(self, name: str) -> Path: ...
    def dtype(self, name: str) -> torch.dtype: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def read(self, name: str, index: tuple[slice, ...]) -> torch.Tensor: ...
    def codes(self, name: str, index: tuple[slice, ...]) -> QuantisedWeight | None: ...


def open_checkpoint(path: Path) -> Checkpoint:
    """A Hugging Face directory or a GGUF file, its header read and its files found, no tensor loaded.

    Raises WeightsError, naming the file, when something is missing, truncated or of an unknown family.
    """
    found = locate(path)
    return GgufCheckpoint(found) if is_gguf(found) else HuggingFaceCheckpoint(found)


def load(
    path: Path,
    *,
    dtype: torch.dtype | None = None,
    kv_dtype: torch.dtype | None = None,
    device: torch.device,
    rank: int = 0,
    world: int = 1,
    make_linear: LinearFactory | None = None,
    quantization: str | None = None,
) -> Decoder:
    """The decoder in a checkpoint, on `device`.

    `dtype` is bfloat16, float32, or None for the checkpoint's own: bfloat16 unless it is stored as
    float32. `kv_dtype` is that of the KV cache, None: the same. With `world` > 1 the decoder holds
    `rank`'s heads and feed-forward columns (Shoeybi et al. 2019, arXiv:1909.08053), and the outputs of
    `out` and `down` are partial sums. `make_linear` builds every linear; None takes `linear_for`. With
    `quantization`, one of `quantisation.BITS`, linears are quantised instead, on a CPU. Raises WeightsError
    naming the file, and the tensor if it is one, that is missing or wrong.
    """
    checkpoint = open_checkpoint(path)
    if quantization == "gguf" and not isinstance(checkpoint, GgufCheckpoint):
        raise WeightsError(
            f"{path} is no GGUF file, whose blocks quantization 'gguf' takes; set 'int8' or 'int4'"
        )
    dtype = dtype or _dtype_of(checkpoint)
    kv_dtype = kv_dtype or dtype
    make_linear = make_linear or linear_for(device, dtype)
    loader = _Loader(checkpoint, dtype, device, rank, world, make_linear, quantization)
    with ThreadPoolExecutor(_HASH_THREADS) as threads:
        digests = threads.map(_digest, checkpoint.files)
        decoder = loader.decoder()
        identity = hashlib.sha256(b"".join(digests))
    computation = _computation(checkpoint.family)
    identity.update(f"{dtype} {quantization} {kv_dtype} rank {rank} of {world} {computation}".encode())
    return replace(decoder, content_id=identity.digest(), kv_dtype=kv_dtype)


def _computation(family: Family) -> str:
    """The description without what changes no KV."""
    return repr(replace(family, eos_token_ids=frozenset()))


def _dtype_of(checkpoint: Checkpoint) -> torch.dtype:
    stored = checkpoint.dtype("model.embed_tokens.weight")
    return torch.float32 if stored == torch.float32 else torch.bfloat16


def _digest(file: Path) -> bytes:
    """SHA-256 of a whole file: a fine-tune may change any one tensor, so no sample will do."""
    with file.open("rb", buffering=0) as stream:
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_HASH_BUFFER_BYTES))
        while size := stream.readinto(buffer):
            digest.update(buffer[:size])
    return digest.digest()


class _Loader:
    """Makes one rank's parts. Copies each tensor once, out of the memory map to where it will stay."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        rank: int,
        world: int,
        make_linear: LinearFactory,
        quantization: str | None,
    ) -> None:
        self._checkpoint, self._whole = checkpoint, checkpoint.family
        self._family = self._whole.shard(world)
        self._dtype, self._device, self._make_linear = dtype, device, make_linear
        self._quantization = quantization
        self._is_first = rank == 0
        self._queries = share(self._whole.num_heads, rank, world, self._family.head_dim)
        self._keys = share(self._whole.num_kv_heads, rank, world, self._family.head_dim)
        self._columns = share(self._whole.intermediate_size, rank, world)

    def decoder(self) -> Decoder:
        family = self._family
        body = Body(
            rotaries=tuple(Rotary(rope, self._device) for rope in family.ropes),
            layers=tuple(self._layer(i) for i in range(family.num_layers)),
            norm=self._norm("model.norm"),
        )
        rows, head = self._embedding_and_head()
        return Decoder(
            config=family,
            content_id=b"",
            dtype=self._dtype,
            kv_dtype=self._dtype,
            device=self._device,
            embedding=Embedding(rows, family.embedding_scale),
            body=body,
            stack=stack_for(body, family, self._dtype, self._device),
            head=Head(head, family.logit_soft_cap),
        )

    def _embedding_and_head(self) -> tuple[Layer, Layer]:
        shape = whole(self._family.vocab_size), whole(self._family.hidden_size)
        table = {"model.embed_tokens.weight": shape}
        if not self._family.tied_head:
            return Table(self._fuse(table)), self._linear({"lm_head.weight": shape}, None, HEAD_BITS)
        if self._quantization is not None:
            coded = self._quantised(table, None, HEAD_BITS[self._quantization])
            return coded.rows, coded
        weight = self._fuse(table)
        head = self._make_linear(weight, None)
        return head.rows if isinstance(head, PackedLinear) else Table(weight), head

    def _layer(self, i: int) -> DecoderLayer:
        prefix, norms = f"model.layers.{i}.", self._family.norms
        return DecoderLayer(
            attn_in=self._optional_norm(prefix, norms.attn_in),
            attention=self._attention(prefix + "self_attn.", self._family.windows[i]),
            attn_out=self._optional_norm(prefix, norms.attn_out),
            ffn_in=self._optional_norm(prefix, norms.ffn_in),
            ffn=self._ffn(prefix + "mlp."),
            ffn_out=self._optional_norm(prefix, norms.ffn_out),
            rope=self._family.layer_ropes[i],
        )

    def _attention(self, prefix: str, window: int) -> Attention:
        family = self._family
        cuts = {"q_proj": self._queries, "k_proj": self._keys, "v_proj": self._keys}
        return Attention(
            qkv=self._cut_outputs(prefix, cuts, family.qkv_bias),
            out=self._cut_inputs(f"{prefix}o_proj", self._queries, family.attn_out_bias),
            head_dim=family.head_dim,
            scale=family.attention_scale,
            window=window,
            soft_cap=family.attention_soft_cap,
            qk_norm=self._qk_norm(prefix) if family.qk_norm else None,
            norm_eps=family.norm_eps,
        )

    def _ffn(self, prefix: str) -> GatedMLP:
        cuts = {"gate_proj": self._columns, "up_proj": self._columns}
        return GatedMLP(
            gate_up=self._cut_outputs(prefix, cuts, self._family.mlp_bias),
            down=self._cut_inputs(f"{prefix}down_proj", self._columns, self._family.mlp_bias),
            activation=self._family.activation,
        )

    def _cut_outputs(self, prefix: str, cuts: dict[str, Axis], has_bias: bool) -> Layer:
        """One linear that computes the rank's outputs of several, side by side."""
        inputs = whole(self._family.hidden_size)
        weights = {f"{prefix}{name}.weight": (cut, inputs) for name, cut in cuts.items()}
        bias = (
            self._fuse({f"{prefix}{name}.bias": (cut,) for name, cut in cuts.items()}) if has_bias else None
        )
        return self._linear(weights, bias)

    def _cut_inputs(self, name: str, inputs: Axis, has_bias: bool) -> Layer:
        """A linear over the rank's inputs; the first rank adds the bias, so that the sum has it once."""
        outputs = whole(self._family.hidden_size)
        bias = self._fuse({f"{name}.bias": (outputs,)}) if has_bias and self._is_first else None
        return self._linear({f"{name}.weight": (outputs, inputs)}, bias)

    def _linear(self, parts: Parts, bias: torch.Tensor | None, bits: Mapping[str, int] = BITS) -> Layer:
        if self._quantization is None:
            return self._make_linear(self._fuse(parts), bias)
        return self._quantised(parts, bias, bits[self._quantization])

    def _quantised(self, parts: Parts, bias: torch.Tensor | None, bits: int) -> QuantisedLinear:
        """Of the codes that are stored, or of `bits`."""
        for name, cut in parts.items():
            self._check_groups(name, cut[1])
        weight = self._stored_codes(parts) if self._quantization == "gguf" else None
        if weight is None:
            weight = quantise(self._fuse(parts, torch.float32), bits)
        return QuantisedLinear(weight, bias, self._dtype)

    def _stored_codes(self, parts: Parts) -> QuantisedWeight | None:
        stored = []
        for name, cut in parts.items():
            self._check(name, tuple(axis.size for axis in cut))
            stored.append(self._checkpoint.codes(name, tuple(axis.kept for axis in cut)))
        return joined(stored)

    def _check_groups(self, name: str, inputs: Axis) -> None:
        if inputs.kept.start % GROUP or inputs.kept.stop % GROUP:
            raise WeightsError(
                f"{self._checkpoint.file_of(name)} tensor {name!r} has inputs {inputs.kept.start} to "
                f"{inputs.kept.stop} here; quantization {self._quantization!r} needs multiples of {GROUP}"
            )

    def _optional_norm(self, prefix: str, name: str | None) -> Norm:
        return NO_NORM if name is None else self._norm(prefix + name)

    def _norm(self, name: str) -> Norm:
        return RMSNorm(self._norm_weight(name, self._family.hidden_size), self._family.norm_eps)

    def _qk_norm(self, prefix: str) -> torch.Tensor:
        family = self._family
        weights = [self._norm_weight(f"{prefix}{name}", family.head_dim) for name in ("q_norm", "k_norm")]
        repeats = torch.tensor([family.num_heads, family.num_kv_heads], device=self._device)
        return torch.stack(weights).repeat_interleave(repeats, 0)

    def _norm_weight(self, name: str, size: int) -> torch.Tensor:
        return self._fuse({f"{name}.weight": (whole(size),)}, torch.float32) + self._family.norm_offset

    def _fuse(self, parts: Parts, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The cuts of the named tensors, one below the other, in `dtype` or the loader's, on its device."""
        cuts = list(parts.values())
        rows = sum(cut[0].length for cut in cuts)
        shape = (rows, *(axis.length for axis in cuts[0][1:]))
        fused = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        start = 0
        for name, cut in parts.items():
            self._check(name, tuple(axis.size for axis in cut))
            values = self._checkpoint.read(name, tuple(axis.kept for axis in cut))
            fused[start : start + cut[0].length] = values
            start += cut[0].length
        return fused

    def _check(self, name: str, expected: tuple[int, ...]) -> None:
        shape = self._checkpoint.shape(name)
        if shape != expected:
            raise WeightsError(
                f"{self._checkpoint.file_of(name)} tensor {name!r} has shape {list(shape)}; "
                f"its configuration says {list(expected)}"
            )
