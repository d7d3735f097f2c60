"""Attention over the paged KV cache, and what fills and moves it. Part of `pagetide_kernels.ops`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagetide_kernels.backend import kernels_for
from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.cpu import memory
from pagetide_kernels.signatures import BLOCK_SIZE


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
    key_scale: float = 1.0,
    value_scale: float = 1.0,
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
        kv_cache: [N, 2, Hkv, 16, D] of query's dtype, on a GPU also float8_e4m3fn: blocks of 16 tokens, keys
            then values. On a CPU also int8, see `kv_cache_shape`.
        block_table: [B, M] int32; entry b holds the block of positions 16 b to 16 b + 15.
        query_starts: [B + 1] int32, rising, from 0 or more to T or less.
        kv_lens: [B] int32, tokens in the cache including the new ones; 0 gives zeros.
        scale: factor of the dot products, usually D ** -0.5.
        window: positions a query sees, itself included; 0: all.
        soft_cap: scores become soft_cap * tanh(score / soft_cap); 0: they stay.
        out: where to write, like query; rows that no sequence owns stay as they are.
        max_query_len: the most queries a sequence has, where the caller knows it; spares a GPU launches.
        key_scale, value_scale: what cached keys and values are multiplied by, those they were written with.
            1 on a CPU.

    Returns:
        `out`, [T, Hq, D].

    Raises:
        ArgumentError: an argument of the wrong kind, or indices that point outside the cache.
    """
    kernels = kernels_for("paged_attention", "query", query)
    if out is None:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
    tensors = (out, query, kv_cache, block_table, query_starts, kv_lens)
    kernels.paged_attention(tensors, (scale, window, soft_cap, key_scale, value_scale), max_query_len)
    return out


def write_kv(
    key: Tensor,
    value: Tensor,
    kv_cache: Tensor,
    slots: Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Writes T tokens' keys and values to their places in the cache.

    Args:
        key, value: [T, Hkv, D], rows at any distance; bfloat16, on a CPU float32, on a GPU float16 too.
        kv_cache: [N, 2, Hkv, 16, D] of their dtype, on a GPU also float8_e4m3fn, changed in place. On a CPU
            also int8, see `kv_cache_shape`: each token's head gets the scale that its largest value needs.
        slots: [T] int64, block id * 16 + offset in the block; negative: the token is not written.
        key_scale, value_scale: what is written is divided by them; e4m3 holds up to 448, and what is larger
            becomes that. 1 on a CPU.

    Raises:
        ArgumentError: an argument of the wrong kind, or a slot outside the cache.
    """
    kernels = kernels_for("write_kv", "key", key)
    kernels.write_kv((kv_cache, key, value, slots), (key_scale, value_scale))


def split_qkv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv_cache: Tensor,
    slots: Tensor,
    norm: Tensor | None = None,
    epsilon: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> Tensor:
    """What follows a fused QKV projection: q/k norm, RoPE, and the write of keys and values to the cache.

    RoPE (Su et al. 2021) turns the first R dimensions of each query and key head, i with i + R / 2.

    Args:
        qkv: [T, Hq + 2 Hkv, D]: query heads, key heads, value heads, rows at any distance. Left undefined.
        cos, sin: [T, 1, R] float32 of the tokens' positions, the halves alike, sin negated in its first.
        kv_cache, slots, key_scale, value_scale: as in `write_kv`.
        norm: [Hq + Hkv, D] float32, the weights of an RMSNorm of each query and key head (Qwen 3); None:
            there is none.
        epsilon: of that norm.

    Returns:
        The queries, [T, Hq, D] of qkv's dtype.

    Raises:
        ArgumentError: an argument of the wrong kind, or a slot outside the cache.
    """
    kernels = kernels_for("split_qkv", "qkv", qkv)
    query = torch.empty(_query_shape(qkv, kv_cache), dtype=qkv.dtype, device=qkv.device)
    tensors = (query, kv_cache, qkv, cos, sin, slots, norm)
    kernels.split_qkv(tensors, (epsilon, key_scale, value_scale))
    return query


def _query_shape(qkv: Tensor, kv_cache: object) -> list[int]:
    """Arguments of other shapes are for the kernel's table to refuse."""
    if qkv.dim() != 3 or not isinstance(kv_cache, Tensor) or kv_cache.dim() not in (4, 5):
        return [0]
    return [len(qkv), max(0, qkv.shape[1] - 2 * kv_cache.shape[2]), qkv.shape[2]]


def move_blocks(
    to: Tensor, source: Tensor, to_ids: Tensor | None = None, source_ids: Tensor | None = None
) -> None:
    """to[to_ids[i]] = source[source_ids[i]], whole blocks: a copy, a gather (no `to_ids`) or a scatter.

    Args:
        to, source: [N, ...], equal but for N; within one cache no block may be both read and written.
        to_ids, source_ids: [n] int64; None: block i itself. A negative id moves nothing.

    Raises:
        ArgumentError: an argument of the wrong kind, both ids left out, or a block outside.
    """
    kernels = kernels_for("move_blocks", "to", to)
    if to_ids is None and source_ids is None:
        raise ArgumentError("move_blocks: to_ids and source_ids are None; expected at least one")
    tensors = (_as_bytes("to", to), _as_bytes("source", source), to_ids, source_ids)
    kernels.move_blocks(tensors)


def _as_bytes(name: str, blocks: Tensor) -> Tensor:
    if not isinstance(blocks, Tensor):
        raise ArgumentError(f"move_blocks: {name} is a {type(blocks).__name__}; expected a torch.Tensor")
    if not blocks.is_contiguous() or blocks.dim() < 2:
        actual = f"of shape {list(blocks.shape)} and strides {list(blocks.stride())}"
        raise ArgumentError(f"move_blocks: {name} is {actual}; expected contiguous blocks")
    return blocks.flatten(1).view(torch.uint8)


def kv_cache_shape(num_blocks: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[int, ...]:
    """The shape of a layer's cache of `dtype`: [N, 2, Hkv, 16, D], of int8 [N, 2, Hkv, 16 D + 64].

    An int8 cache holds 16 tokens' codes, [16, D], and then a float32 scale for each of them.
    """
    heads = num_blocks, 2, num_kv_heads
    return (*heads, BLOCK_SIZE * (head_dim + 4)) if dtype == torch.int8 else (*heads, BLOCK_SIZE, head_dim)


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor where the kernels read fastest: for the KV cache. On a CPU in huge pages."""
    if device.type == "cpu":
        return memory.empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=device)
