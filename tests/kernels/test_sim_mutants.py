"""Kernels broken on purpose must be noticed; all of them: `python -m pagetide_kernels.sim.mutants`."""

from __future__ import annotations

import pytest

from pagetide_kernels.sim.mutants import all_mutants, how_caught

MUTANTS = all_mutants()
QUICK = [
    "wrong-ring-stage",
    "mask-off-by-one",
    "table-over-read",
    "attention_prefill.cu-without-__syncthreads-0",
    "attention_decode.cu-without-__threadfence-1",
    "vector.cuh-without-__syncthreads-1",
]


@pytest.mark.parametrize("name", QUICK)
def test_a_broken_kernel_is_caught(name):
    assert how_caught(MUTANTS[name])


def test_every_barrier_fence_and_wait_has_a_mutant():
    """The list is read from the sources: a barrier added later is covered too."""
    assert sum("without" in name for name in MUTANTS) >= 25
