"""What clients see under load, in simulated time: fair shares between tenants, and steady streams."""

from __future__ import annotations

import random
import statistics
from array import array

import pytest
from simulation.load import FASTER, TWO_CORES, Client, Machine, serve

from pagetide.limits import Limits

LIMITS = Limits(max_step_tokens=512, max_running=64, max_model_len=65_536)


def prompt(rng: random.Random, length: int) -> array[int]:
    return array("i", (rng.randrange(50_000) for _ in range(length)))


def quiet_clients(gap_s: float = 0.9, count: int = 40) -> list[Client]:
    rng = random.Random(1)
    return [
        Client(1 + gap_s * (i + 0.3 * rng.random()), prompt(rng, rng.randint(100, 400)), 60, "quiet")
        for i in range(count)
    ]


def flood(count: int) -> list[Client]:
    rng = random.Random(2)
    return [Client(2.0, prompt(rng, rng.randint(100, 600)), 100, "flood") for _ in range(count)]


def mean_and_p95_ttft_s(clients: list[Client]) -> tuple[float, float]:
    ttfts_s = [client.ttft_s for client in clients]
    return statistics.mean(ttfts_s), statistics.quantiles(ttfts_s, n=20)[-1]


@pytest.mark.parametrize("machine", [TWO_CORES, FASTER], ids=["two cores", "faster"])
@pytest.mark.parametrize("gap_s", [0.9, 4.5])
def test_a_flood_of_a_thousand_requests_raises_anothers_ttft_by_half_at_most(
    machine: Machine, gap_s: float
) -> None:
    """In the mean and in the 95th percentile, against the same tenant on the same machine without a flood."""
    alone, beside_a_flood = quiet_clients(gap_s), quiet_clients(gap_s)
    serve(alone, LIMITS, num_blocks=4000, machine=machine)
    serve(beside_a_flood + flood(1000), LIMITS, num_blocks=4000, machine=machine)
    for alone_s, beside_s in zip(*map(mean_and_p95_ttft_s, (alone, beside_a_flood)), strict=True):
        assert beside_s <= 1.5 * alone_s


def test_a_larger_flood_changes_nothing_for_others() -> None:
    means_s = []
    for count in (300, 1000):
        quiet = quiet_clients(count=20)
        serve(quiet + flood(count), LIMITS, num_blocks=4000)
        means_s.append(mean_and_p95_ttft_s(quiet)[0])
    assert means_s[1] == pytest.approx(means_s[0], rel=0.1)


def p99_interval_s(target_itl_s: float | None, long_prompt: bool) -> float:
    """Of 16 streams, while a prompt of 32k tokens arrives or none does."""
    rng = random.Random(3)
    streams = [Client(0.0, prompt(rng, 64), 700) for _ in range(16)]
    late = [Client(1.0, prompt(rng, 32_768), 4)] if long_prompt else []
    limits = Limits(2048, 64, 65_536, target_itl_s=target_itl_s)
    serve(streams + late, limits, num_blocks=8000)
    intervals = [interval for stream in streams for interval in stream.intervals_s[1:]]
    return statistics.quantiles(intervals, n=100)[-1]


def test_a_prompt_of_32k_tokens_leaves_16_streams_their_latency() -> None:
    quiet_s = p99_interval_s(None, long_prompt=False)
    assert quiet_s < 1.5 * FASTER.step_s
    assert p99_interval_s(None, long_prompt=True) > 10 * quiet_s
    assert p99_interval_s(1.8 * quiet_s, long_prompt=True) <= 2 * quiet_s
