"""What the kernels in `cuda/` take: the table of `signatures`, in the formats that tensor cores know.

The arguments of an op that a CPU also has are the CPU's, with their order; scalars that only these
kernels know follow.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from pagetide_kernels import signatures
from pagetide_kernels.binding import Layout, ScalarParam, Signature, TensorParam

ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "f16"}
CACHES = {**ELEMENTS, torch.float8_e4m3fn: "e4m3"}
HEAD_DIMS = (64, 80, 96, 128, 256)
MAX_GROUP = 16

_DTYPES = {"element": tuple(ELEMENTS), "cache": tuple(CACHES)}
_CACHE_SCALES = (ScalarParam("key_scale", "f32"), ScalarParam("value_scale", "f32"))


def _with_cache_dtype(param: TensorParam) -> TensorParam:
    return replace(param, dtype="cache") if param.name == "kv_cache" else param


def _for_device(signature: Signature, extra: tuple[ScalarParam, ...]) -> Signature:
    return replace(
        signature,
        tensors=tuple(map(_with_cache_dtype, signature.tensors)),
        scalars=signature.scalars + extra,
        dtypes=_DTYPES,
    )


PAGED_ATTENTION = _for_device(signatures.PAGED_ATTENTION, _CACHE_SCALES)
WRITE_KV = _for_device(signatures.WRITE_KV, _CACHE_SCALES)

_ELEMENT = {"element": tuple(ELEMENTS)}


def _rows(name: str, *dims: int | str, dtype: torch.dtype | str = "element", **options: bool) -> TensorParam:
    return TensorParam(name, dims, dtype, layout=Layout.ROWS, align=16, **options)


def _floats(*names: str) -> tuple[TensorParam, ...]:
    return tuple(TensorParam(name, ("S",), torch.float32) for name in names)


SPLIT_QKV = Signature(
    "split_qkv",
    tensors=(
        _rows("query", "T", "Hq", "D"),
        _rows("kv_cache", "N", 2, "Hkv", signatures.BLOCK_SIZE, "D", dtype="cache"),
        _rows("qkv", "T", "Hq + 2 Hkv", "D"),
        TensorParam("cos_sin", ("P", "R"), torch.float32, layout=Layout.ROWS),
        TensorParam("positions", ("T",), torch.int64),
        TensorParam("slots", ("T",), torch.int64),
        TensorParam("query_norm", ("D",), "element", optional=True),
        TensorParam("key_norm", ("D",), "element", optional=True),
    ),
    dims=("T", "N", "Hq", "Hkv", "D", "P", "R"),
    scalars=(ScalarParam("epsilon", "f32"), ScalarParam("weight_offset", "f32"), *_CACHE_SCALES),
    dtypes=_DTYPES,
    multiples={"D": 16, "R": 2},
)
ADD_RMS_NORM = Signature(
    "add_rms_norm",
    tensors=(
        _rows("out", "T", "H"),
        _rows("residual", "T", "H"),
        _rows("input", "T", "H", optional=True),
        TensorParam("weight", ("H",), "element", align=16),
    ),
    dims=("T", "H"),
    scalars=(ScalarParam("epsilon", "f32"), ScalarParam("weight_offset", "f32")),
    dtypes=_ELEMENT,
    multiples={"H": 8},
)
ACTIVATE_AND_MULTIPLY = Signature(
    "activate_and_multiply",
    tensors=(_rows("out", "T", "I"), _rows("gate_up", "T", 2, "I")),
    dims=("T", "I"),
    scalars=(ScalarParam("kind", "i32"),),
    dtypes=_ELEMENT,
    multiples={"I": 8},
)
GATHER_ROWS = Signature(
    "gather_rows",
    tensors=(_rows("out", "S", "H"), _rows("table", "N", "H"), TensorParam("ids", ("S",), torch.int64)),
    dims=("S", "N", "H"),
    dtypes=_ELEMENT,
    multiples={"H": 8},
)
MOVE_BLOCKS = Signature(
    "move_blocks",
    tensors=(
        _rows("to", "N_to", "bytes", dtype=torch.uint8),
        _rows("from", "N_from", "bytes", dtype=torch.uint8),
        TensorParam("to_ids", ("n",), torch.int64, optional=True),
        TensorParam("from_ids", ("n",), torch.int64, optional=True),
    ),
    dims=("n", "N_to", "N_from", "bytes"),
    multiples={"bytes": 16},
)
_LOGITS = TensorParam("logits", ("S", "V"), torch.float32, layout=Layout.ROWS)
_TOKENS = TensorParam("tokens", ("S",), torch.int64)
ADJUST_LOGITS = Signature(
    "adjust_logits",
    tensors=(
        _LOGITS,
        TensorParam("row_starts", ("S+1",), torch.int32),
        TensorParam("seen_tokens", ("E",), torch.int32),
        TensorParam("output_counts", ("E",), torch.int32),
        *_floats("repetition", "presence", "frequency"),
        TensorParam("mask", ("S", "V / 32"), torch.int32, layout=Layout.ROWS, optional=True),
    ),
    dims=("S", "V"),
)
GREEDY = Signature("greedy", tensors=(_TOKENS, *_floats("logprobs"), _LOGITS), dims=("S", "V"))
SAMPLE = Signature(
    "sample",
    tensors=(
        _TOKENS,
        _LOGITS,
        *_floats("temperature"),
        TensorParam("top_k", ("S",), torch.int32),
        *_floats("top_p", "min_p", "uniform"),
    ),
    dims=("S", "V"),
)
