"""The kernels as functions of torch tensors, the same on every device.

Tensors on a device run on the backend of that device. Arguments are checked once, at this boundary:
every error is an `ArgumentError` that names the argument, its value and what was expected. What the
index tensors refer to (block ids, lengths) is always checked on a CPU; on a GPU it costs a
synchronisation, so only with PAGETIDE_DEBUG=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from pagetide_kernels import checks, cpu
from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.cpu import memory

_BACKENDS = {"cpu": "pagetide_kernels.cpu", "cuda": "pagetide_kernels.cuda"}


def paged_attention(
    query: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    query_starts: Tensor,
    kv_lens: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    out: Tensor | None = None,
    max_query_len: int | None = None,
) -> Tensor:
    """Causal attention of B sequences' new tokens over their paged KV (PagedAttention, Kwon et al. 2023).

    Sequence i's queries are rows query_starts[i] to query_starts[i + 1] of `query`; their KV is already in
    the cache. Query j of q sits at position kv_lens[i] - q + j and sees the positions up to its own, the
    last `window` of them if window > 0. Decode and prefill sequences mix freely. Query head h reads KV
    head h // (Hq / Hkv). A result does not depend on the other sequences of the call, nor on how many
    of its sequence's queries are in it (on a GPU the last holds up to 16 queries, and to rounding beyond).

    Args:
        query: [T, Hq, D], rows at any distance. CPU: bfloat16 or float32, D a multiple of 16; GPU: bfloat16
            or float16, D one of `device_signatures.HEAD_DIMS`.
        kv_cache: [N, 2, Hkv, 16, D] of query's dtype: blocks of 16 tokens, keys then values.
        block_table: [B, M] int32; entry b holds the block of positions 16 b to 16 b + 15.
        query_starts: [B + 1] int32, rising, from 0 or more to T or less.
        kv_lens: [B] int32, tokens in the cache including the new ones; 0 gives zeros.
        scale: factor of the dot products, usually D ** -0.5.
        window: positions a query sees, itself included; 0: all.
        soft_cap: scores become soft_cap * tanh(score / soft_cap); 0: they stay.
        out: where to write, like query; rows that no sequence owns stay as they are.
        max_query_len: the most queries a sequence has, where the caller knows it; spares a GPU launches.

    Returns:
        `out`, [T, Hq, D].

    Raises:
        ArgumentError: an argument of the wrong kind, or indices that point outside the cache.
    """
    backend = _backend(query, "paged_attention", "query")
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if _checked_by_us(backend):
        checks.paged_attention(kv_cache, block_table, query_starts, kv_lens, window)
    tensors = (out, query, kv_cache, block_table, query_starts, kv_lens)
    backend.paged_attention(tensors, (scale, window, soft_cap), max_query_len)
    return out


def write_kv(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    """Writes T tokens' keys and values to their places in the cache.

    Args:
        key, value: [T, Hkv, D], rows at any distance; bfloat16, on a CPU float32, on a GPU float16 too.
        kv_cache: [N, 2, Hkv, 16, D] of their dtype, changed in place.
        slots: [T] int64, block id * 16 + offset in the block; negative: the token is not written.

    Raises:
        ArgumentError: an argument of the wrong kind, or a slot outside the cache.
    """
    backend = _backend(key, "write_kv", "key")
    if _checked_by_us(backend):
        checks.write_kv(kv_cache, slots)
    backend.write_kv((kv_cache, key, value, slots), ())


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor where the kernels read fastest: for the KV cache. On a CPU in huge pages."""
    if device.type == "cpu":
        return memory.empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [num_outputs, num_inputs] in the layout that `linear` reads fastest on its device."""

    data: Tensor
    num_outputs: int
    num_inputs: int

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight, [S, num_inputs] for ids [S] int64: an embedding that is tied to the head."""
        if self.data.device.type == "cpu":
            return cpu.unpacked_rows(self.data, ids)
        return self.data[ids]


def pack_linear(weight: Tensor) -> PackedLinear:
    """Packs a linear layer's weight once, at load time; the weight itself is not needed afterwards.

    Args:
        weight: [N, K], bfloat16 or float32; K even.

    Raises:
        ArgumentError: another dtype or shape.
    """
    if weight.dim() != 2 or weight.dtype not in (torch.bfloat16, torch.float32) or weight.shape[1] % 2:
        actual = f"{str(weight.dtype).removeprefix('torch.')} of shape {list(weight.shape)}"
        raise ArgumentError(f"pack_linear: weight is {actual}; expected bfloat16 or float32 [N, K], K even")
    data = cpu.pack_linear(weight) if weight.device.type == "cpu" else weight
    return PackedLinear(data, *weight.shape)


def linear(input: Tensor, weight: PackedLinear, bias: Tensor | None = None) -> Tensor:
    """input weight^T + bias, accumulated in float32, rounded once.

    On a CPU a row's result is the same bits whatever the other rows are, and however many.

    Args:
        input: [T, K] of weight's dtype, rows at any distance.
        bias: [N] of the same dtype.

    Returns:
        [T, N] of input's dtype.

    Raises:
        ArgumentError: an argument of the wrong kind.
    """
    if weight.data.device.type != "cpu":
        return torch.nn.functional.linear(input, weight.data, bias)
    out = torch.empty((len(input), weight.num_outputs), dtype=weight.data.dtype)
    cpu.linear((out, input, weight.data, bias), ())
    return out


@contextmanager
def simulated_cuda() -> Iterator[None]:
    """Until the context ends, CPU tensors run through the simulated CUDA kernels."""
    before = _BACKENDS["cpu"]
    _BACKENDS["cpu"] = "pagetide_kernels.sim"
    try:
        yield
    finally:
        _BACKENDS["cpu"] = before


def _backend(tensor: Tensor, op: str, argument: str) -> ModuleType:
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{op}: {argument} is a {type(tensor).__name__}; expected a torch.Tensor")
    name = _BACKENDS.get(tensor.device.type)
    if name is None:
        known = " or ".join(_BACKENDS)
        raise ArgumentError(f"{op}: {argument} is on device {tensor.device}; expected {known}")
    return _module(name)


_module = cache(import_module)


def _checked_by_us(backend: ModuleType) -> bool:
    return backend.__name__ != "pagetide_kernels.cpu" and os.environ.get("PAGETIDE_DEBUG") == "1"
