"""The simulator itself: it must catch what a GPU would leave to chance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagetide_kernels.launch import SOURCES, Kernel, Launch
from pagetide_kernels.sim_build import Sanitizer
from pagetide_kernels.sim_launch import SimulationError, Simulator

PRELUDE = '#include "prim.cuh"\n'
SIGNATURE = "KERNEL probe(float* out, const float* in, int n)"


@pytest.fixture
def run(tmp_path: Path):
    """run(body, n=, threads=, blocks=, shared_bytes=, sanitizer=) -> out [64] of a kernel with that body."""

    def run(body: str, n=0, threads=64, blocks=1, shared_bytes=0, seed=1, sanitizer=Sanitizer.NONE):
        (tmp_path / "prim.cuh").write_text((SOURCES / "prim.cuh").read_text())
        (tmp_path / "probe.cu").write_text(f"{PRELUDE}{SIGNATURE} {{\n{body}\n}}\n")
        out, source = torch.zeros(64), torch.arange(64, dtype=torch.float32)
        kernel = Kernel("probe.cu", "probe", ("pointer", "pointer", "i32"))
        args = (out.data_ptr(), source.data_ptr(), n)
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        simulator = Simulator(seed, sanitizer, tmp_path)
        simulator.launch(Launch(kernel, grid, block, args, (out, source), shared_bytes))
        return out

    return run


def test_a_deadlock_is_reported_with_thread_and_line(run):
    body = "(void)out; (void)in; (void)n;\nif (threadIdx.x < 40) __syncthreads();\nelse __syncwarp();"
    with pytest.raises(SimulationError, match=r"deadlock in block \(0, 0, 0\): .*probe.cu:4.*probe.cu:5"):
        run(body)


def test_a_warp_that_parts_ways_is_reported(run):
    body = "int lane = threadIdx.x % 32;\nfloat x = in[lane];\n"
    body += "if (lane < 16) x = shuffle_xor(x, 1);\nelse x = shuffle_xor(x, 2);\nout[threadIdx.x] = x + n;"
    with pytest.raises(SimulationError, match=r"the warp has diverged.*probe.cu:[56]"):
        run(body)


def test_shared_memory_starts_as_nan(run):
    body = "(void)in; (void)n;\nSHARED(float[64], shared);\nout[threadIdx.x] = shared[threadIdx.x];"
    assert run(body).isnan().all()


def test_a_write_past_shared_memory_is_reported(run):
    body = "(void)in;\nDYNAMIC_SHARED(float[64], shared);\nshared[threadIdx.x + n] = 1; out[0] = 1;"
    assert run(body, shared_bytes=256)[0] == 1
    with pytest.raises(SimulationError, match="past the end of its shared memory"):
        run(body, n=1, shared_bytes=256)


COPY = """(void)n;
DYNAMIC_SHARED(float[64], shared);
if (threadIdx.x < 16) cp_async16(&shared[threadIdx.x * 4], in + threadIdx.x * 4, true);
cp_async_commit();
%s
out[threadIdx.x] = shared[threadIdx.x];"""


def test_an_async_copy_is_there_after_wait_and_barrier(run):
    out = run(COPY % "cp_async_wait<0>(); __syncthreads();", shared_bytes=256)
    assert torch.equal(out, torch.arange(64.0))


@pytest.mark.parametrize("missing", ["__syncthreads();", "cp_async_wait<1>(); __syncthreads();"])
def test_an_async_copy_read_too_early_is_nan_for_some_seed(run, missing):
    assert any(run(COPY % missing, shared_bytes=256, seed=seed).isnan().any() for seed in range(1, 5))


def test_misaligned_copies_are_reported(run):
    body = "DYNAMIC_SHARED(float[64], shared);\ncp_async16(&shared[4], in + 1 + n, true); out[0] = 0;"
    with pytest.raises(SimulationError, match=r"cp.async.*multiples of 16"):
        run(body, shared_bytes=256)


EXCHANGE = "(void)n;\nSHARED(float[64], shared);\nshared[threadIdx.x] = in[threadIdx.x];\n%s\n"
EXCHANGE += "out[threadIdx.x] = shared[63 - threadIdx.x];"


def test_the_race_detector_finds_a_missing_barrier(run):
    assert run(EXCHANGE % "__syncthreads();", sanitizer=Sanitizer.THREAD)[0] == 63
    with pytest.raises(SimulationError, match=r"(?s)data race.*probe.cu"):
        run(EXCHANGE % "", sanitizer=Sanitizer.THREAD)


def test_a_warp_barrier_does_not_order_two_warps(run):
    with pytest.raises(SimulationError, match="data race"):
        run(EXCHANGE % "__syncwarp();", sanitizer=Sanitizer.THREAD)


LAST_BLOCK = """(void)in; (void)n;
int* arrivals = reinterpret_cast<int*>(out + 32);
if (threadIdx.x == 0) {
  out[blockIdx.x] = 1;
  %s
  if (atomicAdd(arrivals, 1) == 1) {
    %s
    out[8] = out[0] + out[1];
  }
}"""


@pytest.mark.parametrize(("writer", "reader"), [("__threadfence();", ""), ("", "__threadfence();")])
def test_the_race_detector_finds_a_missing_fence_between_blocks(run, writer, reader):
    fences = LAST_BLOCK % ("__threadfence();", "__threadfence();")
    assert run(fences, blocks=2, sanitizer=Sanitizer.THREAD)[8] == 2
    with pytest.raises(SimulationError, match="data race"):
        run(LAST_BLOCK % (writer, reader), blocks=2, sanitizer=Sanitizer.THREAD)


def test_the_address_sanitizer_finds_a_read_past_a_tensor(run):
    with pytest.raises(SimulationError, match=r"(?s)heap-buffer-overflow.*probe.cu"):
        run("out[threadIdx.x] = in[threadIdx.x + n];", n=1, sanitizer=Sanitizer.ADDRESS)


def test_a_workspace_made_in_inference_mode_is_there_after_it():
    simulator = Simulator()
    with torch.inference_mode():
        simulator.workspace(64)
    assert simulator.workspace(64).eq(0xFF).all()
