"""Paged attention through the kernels in `cuda/`, on a GPU or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pagetide_kernels.attention_plan import (
    ROWS_PER_TILE,
    Decode,
    Form,
    Prefill,
    divide_up,
    max_decode_queries,
    max_runs,
)
from pagetide_kernels.binding import ArgumentError, Bound, Number
from pagetide_kernels.device_signatures import CACHES, ELEMENTS, HEAD_DIMS, MAX_GROUP, PAGED_ATTENTION
from pagetide_kernels.launch import Launch, Launcher


@dataclass(frozen=True)
class _Call:
    """One checked call. `longest` is the most queries a sequence of it may have."""

    launcher: Launcher
    bound: Bound
    tensors: Sequence[Tensor | None]
    form: Form
    longest: int

    def size(self, name: str) -> int:
        return self.bound.form.sizes[name]

    @property
    def group(self) -> int:
        return self.size("Hq") // self.size("Hkv")


def paged_attention(
    launcher: Launcher,
    tensors: Sequence[Tensor | None],
    scalars: Sequence[Number],
    max_query_len: int | None = None,
) -> None:
    """`tensors` and `scalars` as in device_signatures.PAGED_ATTENTION. `max_query_len`, where the caller
    knows it on the host, spares launches for longer queries than the batch has.

    Raises:
        ArgumentError: an argument of the wrong kind, or a head size, group size or format that no kernel
            is built for.
    """
    bound = PAGED_ATTENTION.bind(tensors, scalars)
    num_tokens = bound.form.sizes["T"]
    longest = num_tokens if max_query_len is None else min(max_query_len, num_tokens)
    call = _Call(launcher, bound, tensors, _form(bound), longest)
    if call.size("B") == 0 or longest == 0:
        return
    _decode(call)
    if longest > max_decode_queries(call.group):
        _prefill(call)


def _form(bound: Bound) -> Form:
    sizes, dtypes = bound.form.sizes, bound.form.dtypes
    head_dim, group = sizes["D"], sizes["Hq"] // sizes["Hkv"]
    if head_dim not in HEAD_DIMS:
        raise ArgumentError(f"paged_attention: query has head size {head_dim}; built for {HEAD_DIMS}")
    if group > MAX_GROUP:
        raise ArgumentError(f"paged_attention: query has {group} heads a KV head; at most {MAX_GROUP}")
    element, cache = ELEMENTS[dtypes["element"]], CACHES[dtypes["cache"]]
    if cache not in (element, "e4m3"):
        raise ArgumentError(f"paged_attention: kv_cache is {cache} and query {element}; expected the same")
    scale = bound.form.tail[-5]
    if not scale > 0:
        raise ArgumentError(f"paged_attention: scale is {scale}; expected more than 0")
    return Form(head_dim, element, cache)


def _decode(call: _Call) -> None:
    plan = Decode(call.form)
    most = max_decode_queries(call.group)
    rows = min(call.longest, most) * call.group
    row_tiles, partial_rows = divide_up(rows, ROWS_PER_TILE), min(rows, ROWS_PER_TILE)
    rows_of_units = call.size("B") * call.size("Hkv") * row_tiles
    units = rows_of_units * max_runs(call.size("M"))
    partials = call.launcher.workspace(units * partial_rows * (call.form.head_dim + 2) * 4)
    arrivals = call.launcher.counters(rows_of_units)
    slots = call.launcher.num_multiprocessors * call.launcher.blocks_per_multiprocessor(
        plan.kernel, plan.threads, plan.shared_bytes
    )
    extra = (most, partials.data_ptr(), arrivals.data_ptr(), row_tiles, partial_rows)
    call.launcher.launch(
        Launch(
            plan.kernel,
            grid=(min(slots, units), 1, 1),
            block=(plan.threads, 1, 1),
            args=(*call.bound.args, *extra),
            tensors=(*call.tensors, partials, arrivals),
            shared_bytes=plan.shared_bytes,
        )
    )


def _prefill(call: _Call) -> None:
    plan = Prefill(call.form)
    row_blocks = divide_up(call.size("T") * call.group, plan.rows) + call.size("B")
    call.launcher.launch(
        Launch(
            plan.kernel,
            grid=(call.size("Hkv"), row_blocks, 1),
            block=(plan.threads, 1, 1),
            args=(*call.bound.args, max_decode_queries(call.group)),
            tensors=call.tensors,
            shared_bytes=plan.shared_bytes,
        )
    )
