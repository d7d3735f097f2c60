"""The ops on a CPU: the C++ kernels, and plain torch (`plain*.py`) where there is no C++ kernel.

The plain ones are what the compiled step (`pagetide_kernels.decoder`) and the CUDA kernels are held to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagetide_kernels import checks, cpu
from pagetide_kernels import signatures as table
from pagetide_kernels.backend import Tensors
from pagetide_kernels.binding import Number, Signature
from pagetide_kernels.cpu import plain, plain_sampling


class CpuOps:
    """See `backend.Kernels`. Indices are checked."""

    def paged_attention(
        self, tensors: Tensors, scalars: Sequence[Number], max_query_len: int | None = None
    ) -> None:
        """In C++. Lengths are read where they are."""
        cpu.call(_for_cache(table.PAGED_ATTENTION, tensors[2]), tensors, scalars)

    def write_kv(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        """In C++."""
        cpu.call(_for_cache(table.WRITE_KV, tensors[0]), tensors, scalars)

    def split_qkv(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        """In plain torch, the write to the cache in C++."""
        _for_cache(table.SPLIT_QKV, tensors[1]).bind(tensors, scalars)
        query, kv_cache, qkv, cos, sin, slots = map(_given, tensors[:6])
        epsilon, *scales = scalars
        checks.slots("split_qkv", kv_cache, slots)
        num_heads, rotated = query.shape[1], qkv.shape[1] - kv_cache.shape[2]
        heads = plain.rotate(plain.head_norm(qkv[:, :rotated], tensors[6], epsilon), cos, sin)
        self.write_kv((kv_cache, heads[:, num_heads:], qkv[:, rotated:], slots), scales)
        query.copy_(heads[:, :num_heads])

    def add_rms_norm(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        table.ADD_RMS_NORM.bind(tensors, scalars)
        out, residual, added, weight = tensors
        plain.add_rms_norm(_given(out), _given(residual), added, _given(weight), scalars[0])

    def activate_and_multiply(self, tensors: Tensors, scalars: Sequence[Number]) -> None:
        table.ACTIVATE_AND_MULTIPLY.bind(tensors, scalars)
        out, gate_up = map(_given, tensors)
        plain.activate_and_multiply(out, gate_up, table.ACTIVATIONS[int(scalars[0])])

    def gather_rows(self, tensors: Tensors) -> None:
        table.GATHER_ROWS.bind(tensors)
        out, rows, ids = map(_given, tensors)
        checks.gather_rows(rows, ids)
        torch.index_select(rows, 0, ids, out=out)

    def move_blocks(self, tensors: Tensors) -> None:
        table.MOVE_BLOCKS.bind(tensors)
        to, source, *ids = tensors
        checks.move_blocks(_given(to), _given(source), *ids)
        plain.move_blocks(_given(to), _given(source), *ids)

    def penalise(self, tensors: Tensors) -> None:
        table.PENALISE.bind(tensors)
        logits, rows, starts, tokens, *rest = map(_given, tensors)
        checks.penalise(logits, rows, starts, tokens)
        plain_sampling.penalise(logits, rows, starts, tokens, *rest)

    def apply_bitmask(self, tensors: Tensors) -> None:
        table.APPLY_BITMASK.bind(tensors)
        logits, rows, bitmask = map(_given, tensors)
        checks.logits_rows("apply_bitmask", logits, rows)
        plain_sampling.apply_bitmask(logits, rows, bitmask)

    def greedy(self, tensors: Tensors) -> None:
        """One token without its log-probability in C++, else in plain torch."""
        table.GREEDY.bind(tensors)
        tokens, logprobs, logits = tensors
        if logprobs is None and _given(tokens).shape[1] == 1:
            cpu.call(table.LIKELIEST, (_given(tokens)[:, 0], logits), ())
        else:
            plain_sampling.greedy(_given(tokens), logprobs, _given(logits))

    def sample(self, tensors: Tensors) -> None:
        """In C++."""
        table.SAMPLE.bind(tensors)
        cpu.call(table.DRAW, tensors, ())


def _for_cache(signature: Signature, kv_cache: Tensor | None) -> Signature:
    is_int8 = isinstance(kv_cache, Tensor) and kv_cache.dtype == torch.int8
    return table.INT8_CACHE[signature.name] if is_int8 else signature


_ops = CpuOps()


def kernels_for(device: torch.device) -> CpuOps:
    return _ops


def _given(tensor: Tensor | None) -> Tensor:
    """What binding has found to be there."""
    assert tensor is not None
    return tensor
