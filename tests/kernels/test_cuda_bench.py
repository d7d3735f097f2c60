"""The parts of the benchmark and the roofline that need no GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("cuda.core", reason="needs the cuda extra")

from pagetide_kernels import bench, roofline
from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.sim_launch import Simulator


def test_the_measured_batches_are_valid_calls():
    batch = bench.make_batch(roofline.SMOLLM2, 2, 1, 40, torch.device("cpu"))
    batch.tensors[0].fill_(torch.nan)
    scalars = (batch.scale, 0, 0.0, 1.0, 1.0)
    DeviceOps(Simulator()).paged_attention(batch.tensors, scalars, batch.max_query_len)
    assert batch.tensors[0].isfinite().all()
    assert batch.kv_bytes == 2 * 40 * 2 * 3 * 64 * 2


def test_cases_cover_small_and_large_and_fit_the_memory():
    cases = list(bench.decode_cases())
    assert {batch for _, batch, _ in cases} == set(bench.BATCHES)
    assert {context for *_, context in cases} == set(bench.CONTEXTS)
    assert all(shape.kv_bytes_per_token * batch * context <= 32 * 2**30 for shape, batch, context in cases)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_benchmark_says_so(capsys):
    assert bench.main(["--quick"]) == 1
    assert "no GPU" in capsys.readouterr().err


def test_occupancy_is_what_the_tightest_limit_allows():
    few_registers = roofline.occupancy(roofline.H200, 32, 128, 100 * 1024)
    assert few_registers == roofline.Occupancy(2, "shared memory")
    assert roofline.occupancy(roofline.H200, 128, 128, 1024) == roofline.Occupancy(4, "registers")


def test_predictions_never_beat_their_bounds():
    for batch, context in ((1, 256), (64, 4096), (256, 4096)):
        predicted, bound = roofline.decode_seconds(roofline.H200, roofline.LLAMA_8B, batch, context)
        assert predicted > bound
    seconds, flops = roofline.prefill_seconds(roofline.H200, roofline.LLAMA_8B, 8192)
    assert flops / seconds < roofline.H200.peak_flops * roofline.H200.mma_share
