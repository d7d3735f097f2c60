"""The table of kernels: what each takes, the same on every device, in the formats that a CPU knows.

`device_signatures` is this table in the formats of tensor cores. Symbols: T tokens of the step, B sequences,
M blocks a block-table row can hold, N blocks in the cache or rows of a table, Hq query heads, Hkv KV heads,
D head size, R dims of a head that RoPE turns, H hidden size, I gated size, S sampled rows, V tokens of the
vocabulary, n entries of a list. A block holds BLOCK_SIZE tokens. A linear layer has K inputs and N outputs in
C columns of LANES; quantised, its inputs are in G groups of GROUP.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from pagetide_kernels.binding import Layout, ScalarParam, Signature, TensorParam

BLOCK_SIZE = 16
LANES = 16
GROUP = 32
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
"""What a gate goes through; kernels take the place in this tuple (cuda/rows.cu, cpu/decoder_rows.cpp)."""

_ROWS = Layout.ROWS
_FLOATS = (torch.bfloat16, torch.float32)
_ELEMENT = {"element": _FLOATS}


def _rows(
    name: str, *dims: int | str, dtype: torch.dtype | str = "element", align: int = 16, **options: bool
) -> TensorParam:
    return TensorParam(name, dims, dtype, layout=_ROWS, align=align, **options)


def _per_row(*names: str, dtype: torch.dtype = torch.float32) -> tuple[TensorParam, ...]:
    return tuple(TensorParam(name, ("S",), dtype) for name in names)


_KV_CACHE = _rows("kv_cache", "N", 2, "Hkv", BLOCK_SIZE, "D")
_SLOTS = TensorParam("slots", ("T",), torch.int64)
_CACHE_SCALES = (ScalarParam("key_scale", "f32"), ScalarParam("value_scale", "f32"))

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
    scalars=(
        ScalarParam("scale", "f32"),
        ScalarParam("window", "i32"),
        ScalarParam("soft_cap", "f32"),
        *_CACHE_SCALES,
    ),
    dtypes=_ELEMENT,
    multiples={"Hq": "Hkv", "D": 16},
)

WRITE_KV = Signature(
    "write_kv",
    tensors=(_KV_CACHE, _rows("key", "T", "Hkv", "D"), _rows("value", "T", "Hkv", "D"), _SLOTS),
    dims=("T", "N", "Hkv", "D"),
    scalars=_CACHE_SCALES,
    dtypes=_ELEMENT,
    multiples={"Hkv": 1, "D": 16},
)

SPLIT_QKV = Signature(
    "split_qkv",
    tensors=(
        _rows("query", "T", "Hq", "D", output=True),
        _KV_CACHE,
        _rows("qkv", "T", "Hq + 2 Hkv", "D"),
        TensorParam("cos", ("T", 1, "R"), torch.float32),
        TensorParam("sin", ("T", 1, "R"), torch.float32),
        _SLOTS,
        TensorParam("norm", ("Hq + Hkv", "D"), torch.float32, optional=True),
    ),
    dims=("T", "N", "Hq", "Hkv", "D", "R"),
    scalars=(ScalarParam("epsilon", "f32"), *_CACHE_SCALES),
    dtypes=_ELEMENT,
    multiples={"Hkv": 1, "D": 16, "R": 2},
    at_most={"R": "D"},
)

INT8_TILE = f"{BLOCK_SIZE} D + {4 * BLOCK_SIZE}"
"""Bytes of one head's keys, or values, in a block of an 8-bit cache: codes, then a float32 scale a token."""


def _with_int8_cache(signature: Signature) -> Signature:
    cache = _rows("kv_cache", "N", 2, "Hkv", INT8_TILE, dtype=torch.int8, align=64)
    return replace(
        signature,
        name=f"{signature.name}_int8",
        tensors=tuple(cache if tensor.name == "kv_cache" else tensor for tensor in signature.tensors),
    )


INT8_CACHE = {each.name: _with_int8_cache(each) for each in (PAGED_ATTENTION, WRITE_KV, SPLIT_QKV)}
"""The kernels that a CPU also has for a cache of int8, by their names for other caches."""

ADD_RMS_NORM = Signature(
    "add_rms_norm",
    tensors=(
        _rows("out", "T", "H", output=True, align=1),
        _rows("residual", "T", "H", align=1),
        _rows("added", "T", "H", optional=True, align=1),
        TensorParam("weight", ("H",), torch.float32),
    ),
    dims=("T", "H"),
    scalars=(ScalarParam("epsilon", "f32"),),
    dtypes=_ELEMENT,
)

ACTIVATE_AND_MULTIPLY = Signature(
    "activate_and_multiply",
    tensors=(_rows("out", "T", "I", output=True, align=1), _rows("gate_up", "T", 2, "I", align=1)),
    dims=("T", "I"),
    scalars=(ScalarParam("activation", "i32"),),
    dtypes=_ELEMENT,
)

GATHER_ROWS = Signature(
    "gather_rows",
    tensors=(
        _rows("out", "S", "H", output=True, align=1),
        _rows("table", "N", "H", align=1),
        TensorParam("ids", ("S",), torch.int64),
    ),
    dims=("S", "N", "H"),
    dtypes=_ELEMENT,
)

MOVE_BLOCKS = Signature(
    "move_blocks",
    tensors=(
        _rows("to", "N_to", "bytes", dtype=torch.uint8),
        _rows("source", "N_from", "bytes", dtype=torch.uint8),
        TensorParam("to_ids", ("n",), torch.int64, optional=True),
        TensorParam("source_ids", ("n",), torch.int64, optional=True),
    ),
    dims=("n", "N_to", "N_from", "bytes"),
    multiples={"bytes": 16},
)

_LOGITS = TensorParam("logits", ("S", "V"), torch.float32, layout=_ROWS)

PENALISE = Signature(
    "penalise",
    tensors=(
        _LOGITS,
        TensorParam("rows", ("n",), torch.int64),
        TensorParam("starts", ("n+1",), torch.int64),
        TensorParam("tokens", ("E",), torch.int32),
        TensorParam("counts", ("E",), torch.int32),
        *(TensorParam(name, ("n",), torch.float32) for name in ("repetition", "presence", "frequency")),
    ),
    dims=("n", "S", "V"),
)

APPLY_BITMASK = Signature(
    "apply_bitmask",
    tensors=(
        _LOGITS,
        TensorParam("rows", ("n",), torch.int64),
        TensorParam("bitmask", ("n", "words"), torch.int32, layout=_ROWS),
    ),
    dims=("n", "S", "V"),
)

GREEDY = Signature(
    "greedy",
    tensors=(
        TensorParam("tokens", ("S", "n"), torch.int64, output=True),
        TensorParam("logprobs", ("S", "n"), torch.float32, optional=True, output=True),
        _LOGITS,
    ),
    dims=("S", "n", "V"),
    multiples={"n": 1},
)

LIKELIEST = Signature(
    "likeliest",
    tensors=(
        TensorParam("tokens", ("S",), torch.int64, output=True),
        TensorParam("logits", ("S", "V"), "element", layout=_ROWS),
    ),
    dims=("S", "V"),
    dtypes={"element": (torch.float32,)},
)
"""A CPU's own: `greedy` of one token without its log-probability."""

SAMPLE = Signature(
    "sample",
    tensors=(
        TensorParam("tokens", ("S",), torch.int64, output=True),
        _LOGITS,
        *_per_row("temperature"),
        *_per_row("top_k", dtype=torch.int32),
        *_per_row("top_p", "min_p"),
        *_per_row("uniform", dtype=torch.float64),
    ),
    dims=("S", "V"),
)

DRAW = replace(
    SAMPLE,
    name="draw",
    tensors=tuple(replace(each, dtype="element") if each is _LOGITS else each for each in SAMPLE.tensors),
    dtypes={"element": (torch.float32,)},
)
"""A CPU's own: `sample`."""

LINEAR = Signature(
    "linear",
    tensors=(
        TensorParam("out", ("T", "N"), "element", layout=_ROWS, output=True),
        TensorParam("input", ("T", "K"), "element", layout=_ROWS, align=4),
        TensorParam("weight", ("C", "K", LANES), "element"),
        TensorParam("bias", ("N",), "element", optional=True),
    ),
    dims=("T", "N", "K", "C"),
    dtypes=_ELEMENT,
    multiples={"K": 2},
)

LINEAR_WIDENED = replace(
    LINEAR,
    name="linear_widened",
    tensors=(TensorParam("out", ("T", "N"), torch.float32, layout=_ROWS, output=True), *LINEAR.tensors[1:]),
)
"""A CPU's own: what `linear` gives, as float32."""

LINEAR_LIKELIEST = Signature(
    "linear_likeliest",
    tensors=(TensorParam("tokens", ("T",), torch.int64, output=True), *LINEAR.tensors[1:3]),
    dims=("T", "K", "C"),
    scalars=(ScalarParam("num_outputs", "i32"),),
    dtypes=_ELEMENT,
    multiples={"K": 2},
)
"""A CPU's own: the `likeliest` of what `linear_widened` gives."""

UNPACK_ROWS = Signature(
    "unpack_rows",
    tensors=(
        TensorParam("out", ("S", "K"), "element", layout=_ROWS, align=4, output=True),
        TensorParam("weight", ("C", "K", LANES), "element"),
        TensorParam("ids", ("S",), torch.int64),
    ),
    dims=("S", "K", "C"),
    scalars=(ScalarParam("num_rows", "i32"),),
    dtypes=_ELEMENT,
    multiples={"K": 2},
)
"""A CPU's own: rows of a packed weight as they were."""

QUANTISED_LINEAR = Signature(
    "quantised_linear",
    tensors=(
        TensorParam("out", ("T", "N"), "element", layout=_ROWS, output=True),
        TensorParam("input", ("T", "K"), "element", layout=_ROWS, align=4),
        TensorParam("codes", ("C", "G", "bytes"), torch.uint8),
        TensorParam("scales", ("C", "G", "parts", LANES), torch.float16),
        TensorParam("bias", ("N",), "element", optional=True),
    ),
    dims=("T", "N", "K", "C", "G", "bytes", "parts"),
    dtypes=_ELEMENT,
    multiples={"K": GROUP},
)
