"""The table of kernels: what each takes, the same on every device.

Symbols: T tokens of the step, B sequences, M blocks a block-table row can hold, N blocks in the cache,
Hq query heads, Hkv KV heads, D head size. A block holds BLOCK_SIZE tokens. A linear layer has K inputs and
N outputs in C columns of LANES.
"""

from __future__ import annotations

import torch

from pagetide_kernels.binding import Layout, ScalarParam, Signature, TensorParam

BLOCK_SIZE = 16
LANES = 16

_ROWS = Layout.ROWS
_FLOATS = (torch.bfloat16, torch.float32)


def _rows(name: str, *dims: int | str, output: bool = False) -> TensorParam:
    return TensorParam(name, dims, "element", layout=_ROWS, output=output, align=16)


_KV_CACHE = _rows("kv_cache", "N", 2, "Hkv", BLOCK_SIZE, "D")

PAGED_ATTENTION = Signature(
    "paged_attention",
    tensors=(
        _rows("out", "T", "Hq", "D", output=True),
        _rows("query", "T", "Hq", "D"),
        _KV_CACHE,
        TensorParam("block_table", ("B", "M"), torch.int32, layout=_ROWS),
        TensorParam("query_starts", ("B+1",), torch.int32),
        TensorParam("kv_lens", ("B",), torch.int32),
    ),
    dims=("T", "B", "M", "N", "Hq", "Hkv", "D"),
    scalars=(ScalarParam("scale", "f32"), ScalarParam("window", "i32"), ScalarParam("soft_cap", "f32")),
    dtypes={"element": _FLOATS},
    multiples={"Hq": "Hkv", "D": 16},
)

WRITE_KV = Signature(
    "write_kv",
    tensors=(
        _KV_CACHE,
        _rows("key", "T", "Hkv", "D"),
        _rows("value", "T", "Hkv", "D"),
        TensorParam("slots", ("T",), torch.int64),
    ),
    dims=("T", "N", "Hkv", "D"),
    dtypes={"element": _FLOATS},
    multiples={"Hkv": 1, "D": 16},
)

LINEAR = Signature(
    "linear",
    tensors=(
        TensorParam("out", ("T", "N"), "element", layout=_ROWS, output=True),
        TensorParam("input", ("T", "K"), "element", layout=_ROWS, align=4),
        TensorParam("weight", ("C", "K", LANES), "element"),
        TensorParam("bias", ("N",), "element", optional=True),
    ),
    dims=("T", "N", "K", "C"),
    dtypes={"element": _FLOATS},
    multiples={"K": 2},
)
