"""Random lives of the scheduler on a tiny pool, shrunk by hypothesis when one goes wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from scheduler_world import World

from pagetide.config import BLOCK_SIZE

PREFIXES = [[(i * k) % 5 for i in range(3 * BLOCK_SIZE)] for k in (1, 2)]


class SchedulerMachine(RuleBasedStateMachine):
    requests = Bundle("requests")

    @initialize(
        num_blocks=st.integers(5, 12), budget=st.sampled_from([1, 7, 16, 33]), running=st.integers(1, 5)
    )
    def start(self, num_blocks: int, budget: int, running: int) -> None:
        self.world = World(num_blocks, budget, running)

    @rule(
        target=requests,
        prefix=st.sampled_from(PREFIXES),
        kept=st.integers(0, 3 * BLOCK_SIZE),
        own=st.lists(st.integers(0, 4), min_size=1, max_size=8),
        max_tokens=st.integers(1, 24),
        salt=st.sampled_from([b"", b"other"]),
    )
    def submit(self, prefix: list[int], kept: int, own: list[int], max_tokens: int, salt: bytes) -> int:
        return self.world.submit(prefix[:kept] + own, max_tokens, salt=salt)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    @rule(request=requests)
    def abort(self, request: int) -> None:
        self.world.abort(request)

    @rule()
    def fail_a_step(self) -> None:
        self.world.step(fails=True)

    @invariant()
    def blocks_are_conserved(self) -> None:
        if hasattr(self, "world"):
            self.world.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run_until_idle()
            self.world.check_outputs()
            assert self.world.scheduler.pool.num_held == 0


SchedulerMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestSchedulerMachine = SchedulerMachine.TestCase


@pytest.mark.parametrize("seed", range(20))
def test_invariants_hold_over_a_hundred_thousand_random_steps(seed: int) -> None:
    """20 seeds x 5,000 steps: conservation after each, and every output equals the pure one."""
    rng = random.Random(seed)
    world = World(rng.randint(5, 12), rng.choice([1, 7, 16, 33]), rng.randint(1, 5))
    for _ in range(5_000):
        act(world, rng)
        world.scheduler.check()
    world.run_until_idle()
    world.check_outputs()
    assert world.scheduler.pool.num_held == 0


def act(world: World, rng: random.Random) -> None:
    """One engine step, and what clients do before it."""
    if rng.random() < 0.15 and len(live := world.live()) < 20:
        own = [rng.randrange(5) for _ in range(rng.randint(1, 8))]
        prefix = rng.choice(PREFIXES)[: rng.choice([0, 16, 32, rng.randint(0, 48)])]
        world.submit(prefix + own, rng.randint(1, 24), salt=rng.choice([b"", b"other"]))
    if rng.random() < 0.02 and (live := world.live()):
        world.abort(rng.choice(live))
    world.step(fails=rng.random() < 0.005)
