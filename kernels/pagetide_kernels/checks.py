"""What index tensors refer to, checked on the host: for devices whose kernels cannot report an error."""

from __future__ import annotations

import torch
from torch import Tensor

from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.signatures import BLOCK_SIZE


def paged_attention(
    kv_cache: Tensor, block_table: Tensor, query_starts: Tensor, kv_lens: Tensor, window: int
) -> None:
    """Checks that lengths fit and that every block a query will read is in the cache.

    Shapes and arguments as in `ops.paged_attention`.

    Raises:
        ArgumentError: names the entry, its value and what was expected.
    """
    table, starts, lens = block_table.cpu(), query_starts.cpu(), kv_lens.cpu()
    num_queries = starts.diff()
    capacity = table.shape[1] * BLOCK_SIZE
    _refuse(num_queries < 0, num_queries, "paged_attention: the queries of sequence", "0 or more")
    _refuse((lens < 0) | (lens > capacity), lens, "paged_attention: kv_lens", f"0 to {capacity}")
    too_short = (lens > 0) & (lens < num_queries)
    _refuse(too_short, lens, "paged_attention: kv_lens", "at least the sequence's queries, or 0")
    first = (lens - num_queries - window + 1).clamp(min=0) if window else torch.zeros_like(lens)
    position = torch.arange(table.shape[1]) * BLOCK_SIZE
    read = (position < lens[:, None]) & (position + BLOCK_SIZE > first[:, None]) & (num_queries > 0)[:, None]
    outside = (table < 0) | (table >= kv_cache.shape[0])
    expected = f"a block id in [0, {kv_cache.shape[0]})"
    _refuse(read & outside, table, "paged_attention: block_table", expected)


def write_kv(kv_cache: Tensor, slots: Tensor) -> None:
    """Checks that every slot is in the cache. Shapes as in `ops.write_kv`.

    Raises:
        ArgumentError: names the entry, its value and the limit.
    """
    limit = kv_cache.shape[0] * BLOCK_SIZE
    host = slots.cpu()
    _refuse(host >= limit, host, "write_kv: slots", f"less than {limit}")


def _refuse(bad: Tensor, values: Tensor, name: str, expected: str) -> None:
    where = bad.nonzero()
    if len(where):
        index = tuple(where[0].tolist())
        place = "".join(f"[{i}]" for i in index)
        raise ArgumentError(f"{name}{place} is {int(values[index])}; expected {expected}")
