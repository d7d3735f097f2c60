"""Every CUDA kernel under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

ThreadSanitizer sees one fiber a CUDA thread and only the order that barriers and fences make, so a missing
one is a data race; each barrier of the attention kernels has a mutant (test_sim_mutants.py).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pagetide_kernels.attention_plan import Decode, Form, Prefill
from pagetide_kernels.builds import other_builds
from pagetide_kernels.device_ops import Activation, DeviceOps
from pagetide_kernels.sim_build import Sanitizer, program
from pagetide_kernels.sim_launch import SimulationError, Simulator

FORM = Form(64, "bf16", "bf16")


@pytest.fixture(scope="module", autouse=True)
def programs():
    """Built side by side before the tests, which run one after the other."""
    kernels = [Decode(FORM).kernel, Prefill(FORM).kernel, *(build.kernel for build in other_builds())]
    with ThreadPoolExecutor(2) as pool:
        for sanitizer in (Sanitizer.ADDRESS, Sanitizer.THREAD):
            list(pool.map(lambda kernel: program(kernel, sanitizer), kernels))  # noqa: B023


@pytest.fixture(params=[Sanitizer.ADDRESS, Sanitizer.THREAD], ids=["address", "thread"])
def ops(request):
    torch.manual_seed(2)
    return DeviceOps(Simulator(sanitizer=request.param))


def randn(*shape):
    return torch.randn(shape).bfloat16()


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("window", [0, 50])
def test_attention(ops, make_case, window):
    sequences = [(1, 1101), (3, 43), (20, 85), (40, 47), (0, 3), (1, 0)]
    case = make_case(sequences, heads=8, kv_heads=2, dtype=torch.bfloat16, window=window)
    out = torch.full_like(case.query, torch.nan)
    table = case.block_table[:, :-1].contiguous()  # exactly as wide as the longest sequence
    tensors = (out, case.query, case.kv_cache, table, case.query_starts, case.kv_lens)
    ops.paged_attention(tensors, (case.scale, window, 0.0))
    torch.testing.assert_close(out.float(), case.expected(), rtol=0, atol=0.008)


@pytest.mark.parametrize("seed", [2, 3])
def test_the_merge_of_runs_in_other_orders(make_case, seed):
    """Which block of threads comes last decides which fences matter."""
    case = make_case([(1, 1101), (1, 700)], heads=8, kv_heads=2, dtype=torch.bfloat16)
    out = torch.full_like(case.query, torch.nan)
    tensors = (out, case.query, case.kv_cache, case.block_table, case.query_starts, case.kv_lens)
    simulator = Simulator(seed, Sanitizer.THREAD)
    DeviceOps(simulator).paged_attention(tensors, (case.scale, 0, 0.0))
    torch.testing.assert_close(out.float(), case.expected(), rtol=0, atol=0.008)


def test_writing_to_the_cache(ops):
    cache, slots = torch.zeros(3, 2, 2, 16, 64).bfloat16(), ints(47, -1, 0)
    ops.write_kv((cache, randn(3, 2, 64), randn(3, 2, 64), slots))
    norms = (randn(64), randn(64))
    tensors = (randn(3, 5, 64), cache, randn(3, 9, 64), torch.randn(8, 64), ints(7, 0, 3), slots, *norms)
    ops.split_qkv(tensors, (1e-5, 0.0, 1.0, 1.0))
    assert cache[2, :, :, 15].count_nonzero() == 2 * 2 * 64


def test_rows(ops):
    out, rows = randn(3, 1096), randn(3, 1096)
    ops.add_rms_norm((out, rows, randn(3, 1096), randn(1096)), (1e-5, 0.0))
    ops.activate_and_multiply((out, randn(3, 2, 1096)), Activation.SILU)
    ops.gather_rows((out, rows, ints(2, 3, -1)))
    assert torch.equal(out[0], rows[2])


def test_moving_blocks(ops):
    cache, staging = randn(4, 2, 1, 16, 64), randn(2, 2, 1, 16, 64)
    ops.move_blocks(staging, cache, None, ints(3, 0))
    assert torch.equal(staging, cache[[3, 0]])


def test_sampling(ops):
    logits, tokens, some = torch.randn(2, 1003), ints(0, 0), torch.full((2,), 0.7)
    ops.greedy((tokens, torch.zeros(2), logits))
    assert torch.equal(tokens, logits.argmax(-1))
    ops.sample((tokens, logits, some, ints(40, 3, dtype=torch.int32), some, some * 0.01, some))
    nothing = ints(dtype=torch.int32)
    mask = torch.full((2, 32), -1, dtype=torch.int32)
    ops.adjust_logits((logits, ints(0, 0, 0, dtype=torch.int32), nothing, nothing, some, some, some, mask))
    assert logits.isfinite().all()


def test_a_table_too_narrow_for_its_lengths_is_noticed(make_case):
    case = make_case([(1, 700), (1, 20)], heads=4, dtype=torch.bfloat16)
    table = case.block_table[:, :40].contiguous()
    ops = DeviceOps(Simulator(sanitizer=Sanitizer.ADDRESS))
    tensors = (
        torch.empty_like(case.query),
        case.query,
        case.kv_cache,
        table,
        case.query_starts,
        case.kv_lens,
    )
    with pytest.raises(SimulationError, match=r"heap-buffer-overflow|SEGV"):
        ops.paged_attention(tensors, (case.scale, 0, 0.0))
