"""The table of `signatures` as the kernels in `cuda/` take it: the same arguments in the same order, in the
formats that tensor cores know, with rows that start where 16 bytes can be read at once."""

from __future__ import annotations

from dataclasses import replace

import torch

from pagetide_kernels import signatures
from pagetide_kernels.binding import Dim, Layout, Signature, TensorParam

ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "f16"}
CACHES = {**ELEMENTS, torch.float8_e4m3fn: "e4m3"}
HEAD_DIMS = (64, 80, 96, 128, 256)
MAX_GROUP = 16

_VECTOR = 8  # values of 16 bits that are read at once
_VECTOR_BYTES = 16


def _for_device(signature: Signature, **multiples: Dim) -> Signature:
    return replace(
        signature,
        tensors=tuple(map(_param, signature.tensors)),
        dtypes={"element": tuple(ELEMENTS), "cache": tuple(CACHES)},
        multiples={**signature.multiples, **multiples},
    )


def _param(param: TensorParam) -> TensorParam:
    if param.name == "kv_cache":
        return replace(param, dtype="cache")
    is_vectors = param.dtype == "element" and param.layout is Layout.ROWS
    return replace(param, align=_VECTOR_BYTES) if is_vectors or param.name == "weight" else param


PAGED_ATTENTION = _for_device(signatures.PAGED_ATTENTION)
WRITE_KV = _for_device(signatures.WRITE_KV)
SPLIT_QKV = _for_device(signatures.SPLIT_QKV)
ADD_RMS_NORM = _for_device(signatures.ADD_RMS_NORM, H=_VECTOR)
ACTIVATE_AND_MULTIPLY = _for_device(signatures.ACTIVATE_AND_MULTIPLY, I=_VECTOR)
GATHER_ROWS = _for_device(signatures.GATHER_ROWS, H=_VECTOR)
MOVE_BLOCKS = signatures.MOVE_BLOCKS
PENALISE = signatures.PENALISE
APPLY_BITMASK = signatures.APPLY_BITMASK
GREEDY = signatures.GREEDY
SAMPLE = signatures.SAMPLE


def head_problem(head_dim: int, group: int) -> str | None:
    """What about a model's heads the attention kernels are not built for; None: nothing.

    `group` is the number of query heads that share a KV head.
    """
    if head_dim not in HEAD_DIMS:
        return f"head size {head_dim}; the CUDA kernels are built for {', '.join(map(str, HEAD_DIMS))}"
    if group > MAX_GROUP:
        return f"{group} query heads a KV head; the CUDA kernels take at most {MAX_GROUP}"
    return None
