"""The ops over the kernels in `cuda/`, for whoever launches them: a GPU or the simulator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagetide_kernels import checks, device_attention
from pagetide_kernels import device_signatures as table
from pagetide_kernels.backend import Tensors
from pagetide_kernels.binding import Bound, Number, Signature
from pagetide_kernels.launch import Kernel, Launch, Launcher

_VECTOR = 8
_HEADS_PER_BLOCK = 4
_ROW_THREADS = 256
_SAMPLING_THREADS = 512
_MASK_TOKENS = 512 * 8  # that a block of threads masks
_MOVE_BYTES = 256 * 16
_MAX_PIECES = 65535  # of a grid's second dimension


@dataclass(frozen=True)
class Program:
    """A kernel apart from its formats: its source, signature and block size."""

    source: str
    signature: Signature
    threads: int
    macros: tuple[str, ...] = ()

    def kernel(self, defines: dict[str, str]) -> Kernel:
        chosen = tuple((name, defines[name]) for name in self.macros)
        return Kernel(self.source, self.signature.name, self.signature.kinds, chosen)


_CACHE_MACROS = ("HEAD_DIM", "ELEMENT", "CACHE")
WRITE_KV = Program("write_kv.cu", table.WRITE_KV, 128, _CACHE_MACROS)
SPLIT_QKV = Program("write_kv.cu", table.SPLIT_QKV, 128, _CACHE_MACROS)
ADD_RMS_NORM = Program("rows.cu", table.ADD_RMS_NORM, _ROW_THREADS, ("ELEMENT",))
ACTIVATE = Program("rows.cu", table.ACTIVATE_AND_MULTIPLY, _ROW_THREADS, ("ELEMENT",))
GATHER_ROWS = Program("rows.cu", table.GATHER_ROWS, _ROW_THREADS, ("ELEMENT",))
MOVE_BLOCKS = Program("move_blocks.cu", table.MOVE_BLOCKS, 256)
PENALISE = Program("sampling.cu", table.PENALISE, _SAMPLING_THREADS)
APPLY_BITMASK = Program("sampling.cu", table.APPLY_BITMASK, _SAMPLING_THREADS)
GREEDY = Program("sampling.cu", table.GREEDY, _SAMPLING_THREADS)
SAMPLE = Program("sampling.cu", table.SAMPLE, _SAMPLING_THREADS)
PROGRAMS = (
    WRITE_KV,
    SPLIT_QKV,
    ADD_RMS_NORM,
    ACTIVATE,
    GATHER_ROWS,
    MOVE_BLOCKS,
    PENALISE,
    APPLY_BITMASK,
    GREEDY,
    SAMPLE,
)


class DeviceOps:
    """One method for each op: tensors and scalars in the order of its signature (signatures.py).

    What they compute stands with `ops`. Each raises ArgumentError when an argument is of the wrong kind.
    What index tensors hold is checked with PAGETIDE_DEBUG=1 only: it waits for the device.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def paged_attention(
        self, tensors: Tensors, scalars: Sequence[Number], max_query_len: int | None = None
    ) -> None:
        bound = table.PAGED_ATTENTION.bind(tensors, scalars)
        _debug_check(checks.paged_attention, *tensors[2:], bound.form.tail[-4])
        device_attention.paged_attention(self._launcher, bound, tensors, max_query_len)

    def write_kv(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        bound = table.WRITE_KV.bind(tensors, scalars)
        device_attention.check_cache(bound, table.WRITE_KV)
        _debug_check(checks.slots, "write_kv", tensors[0], tensors[3])
        heads = -(-bound.form.sizes["Hkv"] // _HEADS_PER_BLOCK)
        self._launch(WRITE_KV, bound, tensors, (bound.form.sizes["T"], heads))

    def split_qkv(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        bound = table.SPLIT_QKV.bind(tensors, scalars)
        device_attention.check_cache(bound, table.SPLIT_QKV)
        _debug_check(checks.slots, "split_qkv", tensors[1], tensors[5])
        sizes = bound.form.sizes
        heads = sizes["Hq"] + 2 * sizes["Hkv"]
        self._launch(SPLIT_QKV, bound, tensors, (sizes["T"], -(-heads // _HEADS_PER_BLOCK)))

    def add_rms_norm(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        bound = table.ADD_RMS_NORM.bind(tensors, scalars)
        self._launch(ADD_RMS_NORM, bound, tensors, (bound.form.sizes["T"],))

    def activate_and_multiply(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        bound = table.ACTIVATE_AND_MULTIPLY.bind(tensors, scalars)
        pieces = -(-bound.form.sizes["I"] // (_ROW_THREADS * _VECTOR))
        self._launch(ACTIVATE, bound, tensors, (bound.form.sizes["T"], pieces))

    def gather_rows(self, tensors: Tensors) -> None:
        bound = table.GATHER_ROWS.bind(tensors)
        _debug_check(checks.gather_rows, *tensors[1:])
        self._launch(GATHER_ROWS, bound, tensors, (bound.form.sizes["S"],))

    def move_blocks(self, tensors: Tensors) -> None:
        bound = table.MOVE_BLOCKS.bind(tensors)
        _debug_check(checks.move_blocks, *tensors)
        pieces = min(-(-bound.form.sizes["bytes"] // _MOVE_BYTES), _MAX_PIECES)
        self._launch(MOVE_BLOCKS, bound, tensors, (bound.form.sizes["n"], pieces))

    def penalise(self, tensors: Tensors) -> None:
        bound = table.PENALISE.bind(tensors)
        _debug_check(checks.penalise, *tensors[:4])
        self._launch(PENALISE, bound, tensors, (bound.form.sizes["n"],))

    def apply_bitmask(self, tensors: Tensors) -> None:
        bound = table.APPLY_BITMASK.bind(tensors)
        _debug_check(checks.logits_rows, "apply_bitmask", *tensors[:2])
        pieces = -(-bound.form.sizes["V"] // _MASK_TOKENS)
        self._launch(APPLY_BITMASK, bound, tensors, (bound.form.sizes["n"], pieces))

    def greedy(self, tensors: Tensors) -> None:
        bound = table.GREEDY.bind(tensors)
        self._launch(GREEDY, bound, tensors, (bound.form.sizes["S"],))

    def sample(self, tensors: Tensors) -> None:
        bound = table.SAMPLE.bind(tensors)
        self._launch(SAMPLE, bound, tensors, (bound.form.sizes["S"],))

    def _launch(self, program: Program, bound: Bound, tensors: Tensors, grid: tuple[int, ...]) -> None:
        if 0 in grid:
            return
        x, y = (*grid, 1)[:2]
        kernel = program.kernel(_defines(bound))
        self._launcher.launch(Launch(kernel, (x, y, 1), (program.threads, 1, 1), bound.args, tensors))


def _debug_check(check: Callable[..., None], *arguments: object) -> None:
    if os.environ.get("PAGETIDE_DEBUG") == "1":
        check(*arguments)


def _defines(bound: Bound) -> dict[str, str]:
    dtypes = bound.form.dtypes
    defines = {"HEAD_DIM": str(bound.form.sizes.get("D", 0))}
    if "element" in dtypes:
        defines["ELEMENT"] = table.ELEMENTS[dtypes["element"]]
    if "cache" in dtypes:
        defines["CACHE"] = table.CACHES[dtypes["cache"]]
    return defines
