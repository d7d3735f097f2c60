"""All layers of a decoder as one call: no Python and one parallel region between the first norm and the last.

The parts are described by tensors, checked once, and held by the decoder; each step is checked at this
boundary as in `pagetide_kernels.ops`. Runs on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from pagetide_kernels import cpu
from pagetide_kernels.binding import ArgumentError, Layout, Signature, TensorParam
from pagetide_kernels.cpu import decoder as compiled
from pagetide_kernels.decoder_parts import (
    MAX_HEAD_DIM,
    Layer,
    Norm,
    Projection,
    Sizes,
    check_layer,
    check_tensor,
    expect,
    flat_layer,
)
from pagetide_kernels.ops import kv_cache_shape
from pagetide_kernels.signatures import BLOCK_SIZE

__all__ = ["MAX_HEAD_DIM", "DecoderStep", "Layer", "Norm", "Projection", "Sizes", "is_fast"]

_ELEMENTS = (torch.bfloat16, torch.float32)
_ROWS = Layout.ROWS

_STEP = Signature(
    "decoder",
    tensors=(
        TensorParam("hidden", ("T", "H"), "element", align=16),
        TensorParam(
            "kv_caches[0]", ("N", 2, "Hkv", BLOCK_SIZE, "D"), "element", layout=Layout.ROWS, align=16
        ),
        TensorParam("block_table", ("B", "M"), torch.int32, layout=_ROWS),
        TensorParam("query_starts", ("B+1",), torch.int32),
        TensorParam("kv_lens", ("B",), torch.int32),
        TensorParam("slots", ("T",), torch.int64),
    ),
    dtypes={"element": _ELEMENTS},
)

_INT8_CACHE = TensorParam("kv_caches[0]", ("N", 2, "Hkv", "tile"), torch.int8, layout=_ROWS, align=64)
_INT8_STEP = replace(_STEP, tensors=(_STEP.tensors[0], _INT8_CACHE, *_STEP.tensors[2:]))


def is_fast() -> bool:
    """Whether this CPU has the instructions that the compiled step was made for."""
    return cpu.isa() in ("avx512", "amx")


class DecoderStep:
    """A decoder's layers, ready to run.

    `dtype` is the weights' and the hidden states', bfloat16 or float32. Holds the tensors of `layers` and the
    memory it works in, which grows to what the largest step needs. Not for concurrent calls.

    Raises:
        ArgumentError: names the part that does not fit, what it is and what was expected.
    """

    def __init__(self, layers: Sequence[Layer], sizes: Sizes, dtype: torch.dtype) -> None:
        if sizes.problem:
            raise ArgumentError(f"decoder: {sizes.problem}")
        for i, layer in enumerate(layers):
            check_layer(f"decoder: layer {i}", layer, sizes, dtype)
        self._layers, self._sizes, self._dtype = tuple(layers), sizes, dtype
        self._num_ropes = 1 + max(layer.rope for layer in layers)
        shape = compiled.Shape(len(self._layers), *(getattr(sizes, part.name) for part in fields(sizes)))
        self._handle = compiled.Handle(shape, [flat_layer(layer) for layer in layers], dtype)

    def run(
        self,
        hidden: Tensor,
        rotations: Sequence[tuple[Tensor, Tensor]],
        kv_caches: Sequence[Tensor],
        block_table: Tensor,
        query_starts: Tensor,
        kv_lens: Tensor,
        slots: Tensor,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Takes T tokens of B sequences through all layers; their keys and values go to the caches.

        A row's result does not depend on the other rows, nor on how its sequence was cut into steps.

        Args:
            hidden: [T, H], changed in place.
            rotations: for each rope, cos and sin [T, 1, rotary_dim] float32, sin negated in its first half.
            kv_caches: a layer's [N, 2, Hkv, 16, D] each, of one shape and one stride; or of int8, see
                `ops.kv_cache_shape`.
            block_table, query_starts, kv_lens, slots: as in `ops.paged_attention` and `ops.write_kv`; kv_lens
                no less than a sequence's queries.
            wanted: [W] int64, rising: the tokens whose states are asked for, None for all. The last layer
                computes keys and values for the others, and no more.

        Returns:
            [T, H], or [W, H]: the first rows of `hidden`; the others are left as anything.

        Raises:
            ArgumentError: an argument of the wrong kind, or indices that point outside the cache.
        """
        self._check_step(hidden, rotations, kv_caches)
        if wanted is not None:
            check_tensor("decoder: wanted", wanted, (len(wanted),), torch.int64)
        tables = (block_table, query_starts, kv_lens, slots)
        has_int8_caches = kv_caches[0].dtype == torch.int8
        signature = _INT8_STEP if has_int8_caches else _STEP
        sizes = signature.bind((hidden, kv_caches[0], *tables)).form.sizes
        self._handle.run(
            compiled.Step(
                hidden.data_ptr(),
                (compiled.Rotation * len(rotations))(*(_flat_rotation(*rotation) for rotation in rotations)),
                (ctypes.c_void_p * len(kv_caches))(*(cache.data_ptr() for cache in kv_caches)),
                *(table.data_ptr() for table in tables),
                None if wanted is None else wanted.data_ptr(),
                kv_caches[0].stride(0),
                block_table.stride(0),
                *(sizes[name] for name in ("T", "B", "M", "N")),
                compiled.ALL_WANTED if wanted is None else len(wanted),
                torch.get_num_threads(),  # OpenMP's own number is each thread's, and not yet set in a new one
                has_int8_caches,
            )
        )
        return hidden if wanted is None else hidden[: len(wanted)]

    def _check_step(
        self, hidden: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], kv_caches: Sequence[Tensor]
    ) -> None:
        sizes = self._sizes
        expect("decoder: hidden is of shape", list(hidden.shape), [len(hidden), sizes.hidden_size])
        expect("decoder: hidden is of dtype", hidden.dtype, self._dtype)
        expect("decoder: the number of kv_caches is", len(kv_caches), len(self._layers))
        like = _form(kv_caches[0])
        shape = kv_cache_shape(0, sizes.num_kv_heads, sizes.head_dim, kv_caches[0].dtype)
        expect("decoder: kv_caches[0] is of shape [N] +", list(kv_caches[0].shape[1:]), list(shape[1:]))
        for i, cache in enumerate(kv_caches):
            if _form(cache) != like:
                expect(f"decoder: kv_caches[{i}] has shape, strides, dtype, device", _form(cache), like)
        if len(rotations) < self._num_ropes:
            expect("decoder: the number of rotations is", len(rotations), self._num_ropes)
        for i, rotation in enumerate(rotations):
            _check_rotation(f"decoder: rotations[{i}]", rotation, len(hidden), sizes.head_dim)


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _check_rotation(name: str, rotation: tuple[Tensor, Tensor], num_tokens: int, head_dim: int) -> None:
    rotary_dim = rotation[0].shape[-1]
    if rotary_dim > head_dim or rotary_dim % 2:
        expect(f"{name} turns dimensions", rotary_dim, f"an even number up to {head_dim}")
    for part, tensor in zip(("cos", "sin"), rotation, strict=True):
        check_tensor(f"{name} {part}", tensor, (num_tokens, 1, rotary_dim), torch.float32)


def _flat_rotation(cos: Tensor, sin: Tensor) -> compiled.Rotation:
    return compiled.Rotation(cos.data_ptr(), sin.data_ptr(), cos.shape[-1])
