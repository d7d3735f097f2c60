"""What every kernel must compute, in plain float32 torch: the measure of the tests, never used to serve."""

from __future__ import annotations

import torch
from torch import Tensor

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
) -> Tensor:
    """`ops.paged_attention` in float32; rows that no sequence owns are zero."""
    out = torch.zeros(query.shape, dtype=torch.float32)
    for i, kv_len in enumerate(kv_lens.tolist()):
        rows = slice(*query_starts[i : i + 2].tolist())
        if kv_len == 0 or rows.start == rows.stop:
            continue
        key, value = _gather(kv_cache, block_table[i], kv_len)
        position = torch.arange(kv_len - (rows.stop - rows.start), kv_len)
        visible = _visible(position, kv_len, window)
        out[rows] = _attend(query[rows].float(), key, value, visible, scale, soft_cap)
    return out


def _gather(kv_cache: Tensor, blocks: Tensor, kv_len: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one sequence, each [kv_len, Hkv, D] float32."""
    num_blocks = -(-kv_len // BLOCK_SIZE)
    tokens = kv_cache[blocks[:num_blocks].long()].float().permute(1, 0, 3, 2, 4).flatten(1, 2)
    return tokens[0, :kv_len], tokens[1, :kv_len]


def _visible(position: Tensor, kv_len: int, window: int) -> Tensor:
    distance = position[:, None] - torch.arange(kv_len)
    return (distance >= 0) & (distance < window) if window else distance >= 0


def _attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, soft_cap: float
) -> Tensor:
    group = query.shape[1] // key.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(group, dim=1)) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value.repeat_interleave(group, dim=1))


def write_kv(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    """`ops.write_kv`, in place."""
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, BLOCK_SIZE)
            kv_cache[block, 0, :, offset] = key[token]
            kv_cache[block, 1, :, offset] = value[token]
