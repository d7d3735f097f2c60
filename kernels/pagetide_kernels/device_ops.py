"""The ops over the kernels in `cuda/`, for whoever launches them: a GPU or the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from pagetide_kernels import device_attention
from pagetide_kernels import device_signatures as table
from pagetide_kernels.binding import ArgumentError, Bound, Number, Signature
from pagetide_kernels.launch import Kernel, Launch, Launcher

Tensors = Sequence[Tensor | None]

_NO_SCALE = 1.0
_VECTOR = 8
_HEADS_PER_BLOCK = 4
_ROW_THREADS = 256
_SAMPLING_THREADS = 512
_MOVE_BYTES = 256 * 16


class Activation(IntEnum):
    """What a gate goes through; the values are those of cuda/rows.cu."""

    SILU = 0
    GELU_TANH = 1
    GELU = 2


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
ADJUST_LOGITS = Program("sampling.cu", table.ADJUST_LOGITS, _SAMPLING_THREADS)
GREEDY = Program("sampling.cu", table.GREEDY, _SAMPLING_THREADS)
SAMPLE = Program("sampling.cu", table.SAMPLE, _SAMPLING_THREADS)
PROGRAMS = (
    WRITE_KV,
    SPLIT_QKV,
    ADD_RMS_NORM,
    ACTIVATE,
    GATHER_ROWS,
    MOVE_BLOCKS,
    ADJUST_LOGITS,
    GREEDY,
    SAMPLE,
)


class DeviceOps:
    """One method for each op: tensors and scalars in the order of its signature (device_signatures.py).

    Each raises ArgumentError when an argument is of the wrong kind.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def paged_attention(
        self, tensors: Tensors, scalars: Sequence[Number], max_query_len: int | None = None
    ) -> None:
        """See `device_attention.paged_attention`; the cache's scales are 1 when left out."""
        scalars = _with_scales(table.PAGED_ATTENTION, scalars)
        device_attention.paged_attention(self._launcher, tensors, scalars, max_query_len)

    def write_kv(self, tensors: Tensors, scalars: Sequence[Number] = ()) -> None:
        """See `ops.write_kv`; stored values are divided by the cache's scales, 1 when left out."""
        bound = table.WRITE_KV.bind(tensors, _with_scales(table.WRITE_KV, scalars))
        heads = -(-bound.form.sizes["Hkv"] // _HEADS_PER_BLOCK)
        self._launch(WRITE_KV, bound, tensors, (bound.form.sizes["T"], heads))

    def split_qkv(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        """q/k norm, RoPE and the write of keys and values to the cache, of rows [q heads | k | v].

        `cos_sin` [P, R] holds for each position R / 2 cosines, then as many sines; R dims of a head turn.
        `query_norm`, `key_norm` [D] may be None. A negative slot writes no KV.
        """
        bound = table.SPLIT_QKV.bind(tensors, scalars)
        sizes = bound.form.sizes
        heads, expected = sizes["Hq + 2 Hkv"], sizes["Hq"] + 2 * sizes["Hkv"]
        if heads != expected:
            raise ArgumentError(f"split_qkv: qkv has {heads} heads; expected Hq + 2 Hkv = {expected}")
        if sizes["R"] > sizes["D"]:
            raise ArgumentError(f"split_qkv: cos_sin turns {sizes['R']} dims; a head has {sizes['D']}")
        self._launch(SPLIT_QKV, bound, tensors, (sizes["T"], -(-heads // _HEADS_PER_BLOCK)))

    def add_rms_norm(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        """residual += input (if any); out = residual / rms(residual) * (weight + weight_offset)."""
        bound = table.ADD_RMS_NORM.bind(tensors, scalars)
        self._launch(ADD_RMS_NORM, bound, tensors, (bound.form.sizes["T"],))

    def activate_and_multiply(self, tensors: Tensors, kind: Activation) -> None:
        """out [T, I] = activation(gate_up[:, 0]) * gate_up[:, 1], gate_up [T, 2, I]."""
        bound = table.ACTIVATE_AND_MULTIPLY.bind(tensors, (int(kind),))
        pieces = -(-bound.form.sizes["I"] // (_ROW_THREADS * _VECTOR))
        self._launch(ACTIVATE, bound, tensors, (bound.form.sizes["T"], pieces))

    def gather_rows(self, tensors: Tensors) -> None:
        """out[i] = table[ids[i]]: embeddings, or the last row of each sequence; zeros for an id outside."""
        bound = table.GATHER_ROWS.bind(tensors)
        self._launch(GATHER_ROWS, bound, tensors, (bound.form.sizes["S"],))

    def move_blocks(self, to: Tensor, source: Tensor, to_ids: Tensor | None, ids: Tensor | None) -> None:
        """to[to_ids[i]] = source[ids[i]], whole blocks; None for ids: block i itself.

        Within one cache no block may be both read and written. One of the two id tensors must be there.
        """
        if to_ids is None and ids is None:
            raise ArgumentError("move_blocks: to_ids and from_ids are None; expected at least one")
        tensors = (_as_bytes(to), _as_bytes(source), to_ids, ids)
        bound = table.MOVE_BLOCKS.bind(tensors)
        pieces = min(-(-bound.form.sizes["bytes"] // _MOVE_BYTES), 65535)
        self._launch(MOVE_BLOCKS, bound, tensors, (bound.form.sizes["n"], pieces))

    def adjust_logits(self, tensors: Tensors) -> None:
        """Penalties for tokens seen, and -inf for tokens a mask forbids, in place; see cuda/sampling.cu."""
        bound = table.ADJUST_LOGITS.bind(tensors)
        words, needed = bound.form.sizes.get("V / 32"), -(-bound.form.sizes["V"] // 32)
        if words is not None and words < needed:
            raise ArgumentError(f"adjust_logits: mask has {words} words a row; expected {needed}")
        self._launch(ADJUST_LOGITS, bound, tensors, (bound.form.sizes["S"],))

    def greedy(self, tensors: Tensors) -> None:
        """The likeliest token of each row, the smallest of equals, and its log-probability."""
        bound = table.GREEDY.bind(tensors)
        self._launch(GREEDY, bound, tensors, (bound.form.sizes["S"],))

    def sample(self, tensors: Tensors) -> None:
        """A token of each row by temperature, top-k, top-p and min-p; see cuda/sampling.cu."""
        bound = table.SAMPLE.bind(tensors)
        self._launch(SAMPLE, bound, tensors, (bound.form.sizes["S"],))

    def _launch(self, program: Program, bound: Bound, tensors: Tensors, grid: tuple[int, ...]) -> None:
        if 0 in grid:
            return
        x, y = (*grid, 1)[:2]
        kernel = program.kernel(_defines(bound))
        self._launcher.launch(Launch(kernel, (x, y, 1), (program.threads, 1, 1), bound.args, tensors))


def _with_scales(signature: Signature, scalars: Sequence[Number]) -> Sequence[Number]:
    return (*scalars, *[_NO_SCALE] * (len(signature.scalars) - len(scalars)))


def _defines(bound: Bound) -> dict[str, str]:
    dtypes = bound.form.dtypes
    defines = {"HEAD_DIM": str(bound.form.sizes.get("D", 0))}
    if "element" in dtypes:
        defines["ELEMENT"] = table.ELEMENTS[dtypes["element"]]
    if "cache" in dtypes:
        defines["CACHE"] = table.CACHES[dtypes["cache"]]
    return defines


def _as_bytes(blocks: Tensor) -> Tensor:
    return blocks.view(torch.uint8).flatten(1)
