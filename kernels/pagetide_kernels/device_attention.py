"""Paged attention through the kernels in `cuda/`, on a GPU or simulated."""

from __future__ import annotations

from dataclasses import dataclass

from pagetide_kernels.attention_plan import (
    ROWS_PER_TILE,
    Decode,
    Form,
    Prefill,
    divide_up,
    max_decode_queries,
    max_runs,
)
from pagetide_kernels.backend import Tensors
from pagetide_kernels.binding import ArgumentError, Bound, Signature
from pagetide_kernels.device_signatures import CACHES, ELEMENTS, PAGED_ATTENTION, head_problem
from pagetide_kernels.launch import Launch, Launcher


@dataclass(frozen=True)
class _Call:
    """One checked call. `longest` is the most queries a sequence of it may have."""

    launcher: Launcher
    bound: Bound
    tensors: Tensors
    form: Form
    longest: int

    def size(self, name: str) -> int:
        return self.bound.form.sizes[name]

    @property
    def group(self) -> int:
        return self.size("Hq") // self.size("Hkv")


def paged_attention(
    launcher: Launcher, bound: Bound, tensors: Tensors, max_query_len: int | None = None
) -> None:
    """`bound` are `tensors` and scalars as in device_signatures.PAGED_ATTENTION. `max_query_len`, where the
    caller knows it on the host, spares launches for longer queries than the batch has.

    Raises:
        ArgumentError: a head size, group or format that no kernel is built for, or a scalar out of range.
    """
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
    if problem := head_problem(head_dim, group):
        raise ArgumentError(f"paged_attention: query has {problem}")
    check_cache(bound, PAGED_ATTENTION)
    scale, window, soft_cap = bound.form.tail[-5:-2]
    if not scale > 0:
        raise ArgumentError(f"paged_attention: scale is {scale}; expected more than 0")
    if window < 0:
        raise ArgumentError(f"paged_attention: window is {window}; expected 0 or more")
    if not soft_cap >= 0:
        raise ArgumentError(f"paged_attention: soft_cap is {soft_cap}; expected 0 or more")
    return Form(head_dim, ELEMENTS[dtypes["element"]], CACHES[dtypes["cache"]])


def check_cache(bound: Bound, signature: Signature) -> None:
    """The cache is in the tensors' own format or in e4m3, and its scales are above 0.

    Raises:
        ArgumentError: it is not, or they are not.
    """
    element, cache = ELEMENTS[bound.form.dtypes["element"]], CACHES[bound.form.dtypes["cache"]]
    if cache not in (element, "e4m3"):
        other = next(param.name for param in signature.tensors if param.dtype == "element")
        raise ArgumentError(f"{signature.name}: kv_cache is {cache} and {other} {element}; expected the same")
    for name, scale in zip(("key_scale", "value_scale"), bound.form.tail[-2:], strict=True):
        if not scale > 0:
            raise ArgumentError(f"{signature.name}: {name} is {scale}; expected more than 0")


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
