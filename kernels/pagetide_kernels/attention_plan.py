"""Which attention kernels a call launches, with which grids. The numbers mirror cuda/attention_*.cu, where
`static_assert`s hold them to the truth.

Grids depend on shapes only, never on lengths: lengths live on the device, and a captured CUDA graph is
replayed with others.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagetide_kernels.binding import Kind, Signature
from pagetide_kernels.device_signatures import PAGED_ATTENTION
from pagetide_kernels.launch import WARP_SIZE, Kernel
from pagetide_kernels.signatures import BLOCK_SIZE

ROWS_PER_TILE = 16
MAX_DECODE_ROWS = 64  # of a sequence and KV head: above, reading the keys once for all rows pays
MAX_DECODE_QUERIES = 16
MIN_RUN_BLOCKS = 32
MAX_RUNS = 64
_FRAGMENT_BYTES = 16 * WARP_SIZE
_ALIGNMENT = 128


@dataclass(frozen=True)
class Form:
    """What an attention kernel is compiled for: a head size and the C++ names of the formats."""

    head_dim: int
    element: str
    cache: str

    @property
    def tile_bytes(self) -> int:
        return BLOCK_SIZE * self.head_dim * (1 if self.cache == "e4m3" else 2)

    def kernel(self, entry: str, source: str, shared_bytes: int, extra: tuple[Kind, ...]) -> Kernel:
        defines = {"HEAD_DIM": self.head_dim, "ELEMENT": self.element, "CACHE": self.cache}
        defines["SHARED_BYTES"] = shared_bytes
        return Kernel(source, entry, kinds(PAGED_ATTENTION, extra), _as_text(defines))


@dataclass(frozen=True)
class Decode:
    """cuda/attention_decode.cu for one form."""

    form: Form

    @property
    def num_warps(self) -> int:
        return 2 if self.form.tile_bytes > 4096 else 4

    @property
    def threads(self) -> int:
        return self.num_warps * WARP_SIZE

    @property
    def shared_bytes(self) -> int:
        parked = self.form.head_dim > 128
        ring = self.num_warps * (2 if parked else 3) * 2 * self.form.tile_bytes
        outputs = self.num_warps * ROWS_PER_TILE * (self.form.head_dim + 8 + 2) * 4
        query = (self.form.head_dim // 16 if parked else 1) * _FRAGMENT_BYTES
        search_and_flag = 4 * (self.num_warps + 3) + 1
        return _round_up(_round_up(max(ring, outputs)) + query + search_and_flag)

    @property
    def kernel(self) -> Kernel:
        extra: tuple[Kind, ...] = ("i32", "pointer", "pointer", "i32", "i32")
        return self.form.kernel("paged_attention_decode", "attention_decode.cu", self.shared_bytes, extra)


@dataclass(frozen=True)
class Prefill:
    """cuda/attention_prefill.cu for one form."""

    form: Form
    threads = 4 * WARP_SIZE

    @property
    def row_tiles(self) -> int:
        """Row tiles of a warp."""
        return 1 if self.form.head_dim > 128 or (self.form.tile_bytes == 2048 and self._fp8) else 2

    @property
    def rows(self) -> int:
        return 4 * self.row_tiles * ROWS_PER_TILE

    @property
    def shared_bytes(self) -> int:
        query = 4 * self.row_tiles * (self.form.head_dim // 16) * _FRAGMENT_BYTES
        row_block, search = 48, 4 * (4 + 3)
        return _round_up(query + 8 * self.form.tile_bytes + row_block + search)

    @property
    def kernel(self) -> Kernel:
        return self.form.kernel(
            "paged_attention_prefill", "attention_prefill.cu", self.shared_bytes, ("i32",)
        )

    @property
    def _fp8(self) -> bool:
        return self.form.cache == "e4m3"


def max_decode_queries(group: int) -> int:
    """Sequences with up to this many queries are the decode kernel's: a token, or a draft to verify."""
    return max(1, min(MAX_DECODE_QUERIES, MAX_DECODE_ROWS // group))


def max_runs(max_blocks: int) -> int:
    """Runs that a sequence of up to `max_blocks` KV blocks is cut into, at most."""
    return max(1, min(MAX_RUNS, divide_up(max_blocks, MIN_RUN_BLOCKS)))


def kinds(signature: Signature, extra: tuple[Kind, ...]) -> tuple[Kind, ...]:
    return (*signature.kinds, *extra)


def divide_up(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(num_bytes: int) -> int:
    return divide_up(num_bytes, _ALIGNMENT) * _ALIGNMENT


def _as_text(defines: dict[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in defines.items())
