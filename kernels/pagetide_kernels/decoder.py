"""All layers of a decoder as one call, with the angles before and the norm after them: no Python in between.

The parts are described by tensors, checked once, and held by the decoder; each step is checked at this
boundary as in `pagetide_kernels.ops`. Runs on the CPU.
"""

from __future__ import annotations

import ctypes
import operator
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
    Rope,
    Sizes,
    check_ends,
    check_layer,
    check_tensor,
    expect,
    flat_layer,
    flat_norm,
    flat_rope,
)
from pagetide_kernels.ops import kv_cache_shape
from pagetide_kernels.signatures import BLOCK_SIZE

__all__ = ["MAX_HEAD_DIM", "DecoderStep", "Layer", "Norm", "Projection", "Rope", "Sizes", "is_fast"]

_ELEMENTS = (torch.bfloat16, torch.float32)
_ROWS = Layout.ROWS

_STEP = Signature(
    "decoder",
    tensors=(
        TensorParam("hidden", ("T", "H"), "element", align=16),
        TensorParam("positions", ("T",), torch.int64),
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
_INT8_STEP = replace(_STEP, tensors=(*_STEP.tensors[:2], _INT8_CACHE, *_STEP.tensors[3:]))
_NUM_TENSORS = len(_STEP.tensors)


def is_fast() -> bool:
    """Whether this CPU has the instructions that the compiled step was made for."""
    return cpu.isa() != "plain"


class DecoderStep:
    """A decoder's layers, ready to run.

    `dtype` is the weights' and the hidden states', bfloat16 or float32. `norm` comes after the last layer.
    Holds the tensors of its parts, the caches it ran with last, and the memory it works in, which grows to
    what the largest step needs. Not for concurrent calls.

    Raises:
        ArgumentError: names the part that does not fit, what it is and what was expected.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        ropes: Sequence[Rope],
        norm: Norm | None,
        sizes: Sizes,
        dtype: torch.dtype,
    ) -> None:
        if sizes.problem:
            raise ArgumentError(f"decoder: {sizes.problem}")
        for i, layer in enumerate(layers):
            check_layer(f"decoder: layer {i}", layer, sizes, dtype)
        check_ends(layers, ropes, norm, sizes)
        self._parts = (tuple(layers), tuple(ropes), norm)
        self._sizes, self._dtype, self._num_layers = sizes, dtype, len(layers)
        self._caches: tuple[Tensor, ...] = ()
        self._cache_pointers = (ctypes.c_void_p * 0)()
        shape = compiled.Shape(self._num_layers, *(getattr(sizes, part.name) for part in fields(sizes)))
        flat = [flat_layer(layer) for layer in layers], [flat_rope(rope) for rope in ropes], flat_norm(norm)
        self._handle = compiled.Handle(shape, *flat, dtype)

    def run(
        self,
        hidden: Tensor,
        positions: Tensor,
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
            positions: [T] int64.
            kv_caches: a layer's [N, 2, Hkv, 16, D] each, of one shape and one stride; or of int8, see
                `ops.kv_cache_shape`.
            block_table, query_starts, kv_lens, slots: as in `ops.paged_attention` and `ops.write_kv`; kv_lens
                no less than a sequence's queries.
            wanted: [W] int64, rising: the tokens whose states are asked for, None for all. The last layer
                computes keys and values for the others, and no more.

        Returns:
            [T, H], or [W, H], normed: the first rows of `hidden`; the others are left as anything.

        Raises:
            ArgumentError: an argument of the wrong kind, or indices that point outside the cache.
        """
        self._check_hidden(hidden)
        self._know_caches(kv_caches)
        if wanted is not None:
            check_tensor("decoder: wanted", wanted, (len(wanted),), torch.int64)
        is_int8 = kv_caches[0].dtype == torch.int8
        tables = (block_table, query_starts, kv_lens, slots)
        bound = (_INT8_STEP if is_int8 else _STEP).bind((hidden, positions, kv_caches[0], *tables))
        pointers, strides, sizes = bound.args[:_NUM_TENSORS], bound.args[_NUM_TENSORS:], bound.form.sizes
        self._handle.run(
            compiled.Step(
                *pointers[:2],
                self._cache_pointers,
                *pointers[3:],
                None if wanted is None else wanted.data_ptr(),
                *strides,
                *(sizes[name] for name in ("T", "B", "M", "N")),
                compiled.ALL_WANTED if wanted is None else len(wanted),
                torch.get_num_threads(),  # OpenMP's own number is each thread's, and not yet set in a new one
                is_int8,
            )
        )
        return hidden if wanted is None else hidden[: len(wanted)]

    def _check_hidden(self, hidden: Tensor) -> None:
        expect("decoder: hidden is of shape", list(hidden.shape), [len(hidden), self._sizes.hidden_size])
        expect("decoder: hidden is of dtype", hidden.dtype, self._dtype)

    def _know_caches(self, kv_caches: Sequence[Tensor]) -> None:
        """A runner has the same in every step: they are looked at once."""
        expect("decoder: the number of kv_caches is", len(kv_caches), self._num_layers)
        if self._caches and all(map(operator.is_, kv_caches, self._caches)):
            return
        sizes, like = self._sizes, _form(kv_caches[0])
        shape = kv_cache_shape(0, sizes.num_kv_heads, sizes.head_dim, kv_caches[0].dtype)
        expect("decoder: kv_caches[0] is of shape [N] +", list(kv_caches[0].shape[1:]), list(shape[1:]))
        for i, cache in enumerate(kv_caches):
            if _form(cache) != like:
                expect(f"decoder: kv_caches[{i}] has shape, strides, dtype, device", _form(cache), like)
        self._caches = tuple(kv_caches)
        self._cache_pointers = (ctypes.c_void_p * len(kv_caches))(*(each.data_ptr() for each in kv_caches))


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
