"""Memory for what the kernels stream: every tensor has a place of its own."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pagetide_kernels import ops

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (7, 0, 2), (1000, 777), (20 << 20,)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_a_tensor_has_its_shape_and_lies_aligned(shape: tuple[int, ...], dtype: torch.dtype):
    tensor = ops.empty(shape, dtype, CPU)
    assert tensor.shape == shape
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0


def test_tensors_made_by_many_threads_do_not_overlap():
    sizes = [1 + 7919 * i % 300_000 for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        tensors = list(pool.map(lambda size: ops.empty((size,), torch.int32, CPU), sizes))
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    for number, tensor in enumerate(tensors):
        assert (tensor == number).all()


def test_memory_goes_back_with_the_tensors():
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident_bytes()
    tensors = [ops.empty((16 << 20,), torch.uint8, CPU).fill_(1) for _ in range(20)]
    assert resident_bytes() - before > 300 << 20
    del tensors
    gc.collect()
    assert resident_bytes() - before < 100 << 20
