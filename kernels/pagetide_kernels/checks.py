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


def slots(op: str, kv_cache: Tensor, slots: Tensor) -> None:
    """Checks that every slot of `ops.write_kv` or `ops.split_qkv` is in the cache.

    Raises:
        ArgumentError: names the entry, its value and the limit.
    """
    limit = kv_cache.shape[0] * BLOCK_SIZE
    host = slots.cpu()
    _refuse(host >= limit, host, f"{op}: slots", f"less than {limit}")


def gather_rows(table: Tensor, ids: Tensor) -> None:
    """Checks that every id is a row's.

    Raises:
        ArgumentError: names the entry, its value and the limit.
    """
    host = ids.cpu()
    _refuse((host < 0) | (host >= len(table)), host, "gather_rows: ids", f"0 to {len(table) - 1}")


def move_blocks(to: Tensor, source: Tensor, to_ids: Tensor | None, source_ids: Tensor | None) -> None:
    """Checks that every block to move is there, and has a place.

    Raises:
        ArgumentError: names the entry, its value and the limit.
    """
    for name, ids, blocks in (("to_ids", to_ids, to), ("source_ids", source_ids, source)):
        if ids is not None:
            host = ids.cpu()
            _refuse(host >= len(blocks), host, f"move_blocks: {name}", f"less than {len(blocks)}")


def penalise(logits: Tensor, rows: Tensor, starts: Tensor, tokens: Tensor) -> None:
    """Checks that rows are in `logits`, their tokens in the list, and these in the vocabulary.

    Raises:
        ArgumentError: names the entry, its value and the limit.
    """
    logits_rows("penalise", logits, rows)
    starts, tokens = starts.cpu(), tokens.cpu()
    falls = torch.cat((starts[:1] < 0, starts.diff() < 0)) | (starts > len(tokens))
    _refuse(falls, starts, "penalise: starts", f"to rise from 0 to {len(tokens)}")
    outside = (tokens < 0) | (tokens >= logits.shape[1])
    _refuse(outside, tokens, "penalise: tokens", f"0 to {logits.shape[1] - 1}")


def logits_rows(op: str, logits: Tensor, rows: Tensor) -> None:
    """Checks that every one of `rows` is in `logits`.

    Raises:
        ArgumentError: names the entry, its value and the limit.
    """
    host = rows.cpu()
    _refuse((host < 0) | (host >= len(logits)), host, f"{op}: rows", f"0 to {len(logits) - 1}")


def _refuse(bad: Tensor, values: Tensor, name: str, expected: str) -> None:
    where = bad.nonzero()
    if len(where):
        index = tuple(where[0].tolist())
        place = "".join(f"[{i}]" for i in index)
        raise ArgumentError(f"{name}{place} is {int(values[index])}; expected {expected}")
