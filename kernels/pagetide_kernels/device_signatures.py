"""What the kernels in `cuda/` take: the table of `signatures`, in the formats that tensor cores know.

The arguments of an op that a CPU also has are the CPU's, with their order; scalars that only these
kernels know follow.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from pagetide_kernels import signatures
from pagetide_kernels.binding import ScalarParam, Signature, TensorParam

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
