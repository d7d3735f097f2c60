"""Every CUDA kernel under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

ThreadSanitizer sees one fiber a CUDA thread and only the order that barriers and fences make, so a missing
one is a data race. Each barrier, fence and wait has a mutant that one of the looks notices
(sim/mutants.py), so without it the test of that look fails.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pagetide_kernels.attention_plan import Decode, Form, Prefill
from pagetide_kernels.builds import other_builds
from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.signatures import ACTIVATIONS
from pagetide_kernels.sim import looks
from pagetide_kernels.sim_build import Sanitizer, program
from pagetide_kernels.sim_launch import SimulationError, Simulator

FORMS = [Form(64, "bf16", "bf16"), Form(256, "bf16", "bf16")]
RUNS = {
    "attention": looks.attention(64),
    "attention of wide heads": looks.attention(256),
    "rows": looks.rows,
    "sampling": looks.sampling,
}


@pytest.fixture(scope="module", autouse=True)
def programs():
    """Built side by side before the tests, which run one after the other."""
    kernels = [plan(form).kernel for form in FORMS for plan in (Decode, Prefill)]
    kernels += [build.kernel for build in other_builds()]
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


LOOKS = {f"{look.sanitizer.value}-{look.seed}": look for look in looks.looks()}
WIDE = "attention of wide heads"  # has one barrier of its own, which any order of warps shows


@pytest.mark.parametrize(
    ("name", "look"),
    [(name, look) for name in RUNS for look in LOOKS if name != WIDE or look.endswith("-1")],
)
def test_the_kernels_stand_every_look(name, look):
    assert LOOKS[look].complaint(RUNS[name]) is None


def test_writing_to_the_cache(ops):
    cache, slots = torch.zeros(3, 2, 2, 16, 64).bfloat16(), ints(47, -1, 0)
    ops.write_kv((cache, randn(3, 2, 64), randn(3, 2, 64), slots), (1.0, 1.0))
    turn, norm = torch.ones(3, 1, 64), torch.ones(7, 64)
    ops.split_qkv((randn(3, 5, 64), cache, randn(3, 9, 64), turn, turn, slots, norm), (1e-5, 1.0, 1.0))
    assert cache[2, :, :, 15].count_nonzero() == 2 * 2 * 64


def test_rows(ops):
    out, rows = randn(3, 1096), randn(3, 1096)
    ops.add_rms_norm((out, rows, randn(3, 1096), torch.ones(1096)), (1e-5,))
    for kind in range(len(ACTIVATIONS)):
        ops.activate_and_multiply((out, randn(3, 2, 1096)), (kind,))
    ops.gather_rows((out, rows, ints(2, 3, -1)))
    assert torch.equal(out[0], rows[2])


def test_moving_blocks(ops):
    cache, staging = randn(4, 2048), randn(2, 2048)
    ops.move_blocks((staging.view(torch.uint8), cache.view(torch.uint8), None, ints(3, 0)))
    assert torch.equal(staging, cache[[3, 0]])


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
        ops.paged_attention(tensors, (case.scale, 0, 0.0, 1.0, 1.0))
