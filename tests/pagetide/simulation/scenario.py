"""One seed's world: the machine, and everything that clients and bad luck do to it, before it starts."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

from simulation.pure_model import EOS, VOCAB_SIZE

from pagetide.config import BLOCK_SIZE
from pagetide.request import SamplingParams

TENANTS = ("", "amber", "blue")
SALTS = (b"", b"", b"", b"salt")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as a client sends it. `abort_after_s` None: the client stays to the end."""

    at_s: float
    prompt: array[int]
    params: SamplingParams
    tenant: str
    priority: int
    salt: bytes
    timeout_s: float | None
    abort_after_s: float | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """Step n takes `step_s + token_s * tokens` of simulated time; those in `failing_steps` raise."""

    num_blocks: int
    max_step_tokens: int
    max_running: int
    prefix_cache: bool
    step_s: float
    token_s: float
    failing_steps: frozenset[int]
    arrivals: tuple[Arrival, ...]


def make_scenario(seed: int) -> Scenario:
    """The same seed always gives the same world."""
    rng = random.Random(seed)
    num_blocks = rng.choice((1, 2, 3, rng.randint(4, 8), rng.randint(4, 8), rng.randint(6, 24)))
    return Scenario(
        num_blocks=num_blocks,
        max_step_tokens=rng.choice((1, 5, 16, 33, 64, 512)),
        max_running=rng.choice((1, 2, 3, 5, 8)),
        prefix_cache=rng.random() < 0.9,
        step_s=0.01,
        token_s=rng.choice((0.0001, 0.001)),
        failing_steps=frozenset(rng.randrange(1, 100) for _ in range(rng.choice((0, 0, 1, 3)))),
        arrivals=_arrivals(rng, num_blocks * BLOCK_SIZE),
    )


def _arrivals(rng: random.Random, longest: int) -> tuple[Arrival, ...]:
    span_s = rng.choice((0.0, 0.3, 1.0))
    prefixes = [_tokens(rng, rng.randint(1, max(1, longest - 2))) for _ in range(rng.randint(1, 3))]
    arrivals: list[Arrival] = []
    for _ in range(rng.randint(2, 9)):
        arrivals += _ask(rng, rng.random() * span_s, rng.choice(prefixes), longest)
    return tuple(sorted(arrivals, key=lambda arrival: arrival.at_s))


def _ask(rng: random.Random, at_s: float, prefix: array[int], longest: int) -> list[Arrival]:
    """One client's request: `n` samples of one prompt are n requests that arrive together."""
    prompt = _prompt(rng, prefix, longest)
    count = rng.choice((1, 1, 1, 1, 2, 3))
    tenant, salt, priority = rng.choice(TENANTS), rng.choice(SALTS), rng.choice((0, 0, 0, -1, 2))
    timeout_s = rng.choice((None, None, None, None, None, rng.random()))
    abort_after_s = rng.choice((None, None, None, None, None, rng.random() * 0.4))
    return [
        Arrival(
            at_s,
            prompt,
            _params(rng, longest - len(prompt)),
            tenant,
            priority,
            salt,
            timeout_s,
            abort_after_s,
        )
        for _ in range(count)
    ]


def _prompt(rng: random.Random, prefix: array[int], longest: int) -> array[int]:
    """A shared prefix, whole or cut (often at a block's edge), and some tokens of its own."""
    cuts = (len(prefix), len(prefix) // BLOCK_SIZE * BLOCK_SIZE, rng.randint(0, len(prefix)), 0)
    own = _tokens(rng, rng.choice((0, 1, rng.randint(1, 20))))
    prompt = (prefix[: rng.choice(cuts)] + own)[: longest - 1]
    return prompt or _tokens(rng, 1)


def _tokens(rng: random.Random, count: int) -> array[int]:
    return array("i", (rng.randrange(4) for _ in range(count)))


def _params(rng: random.Random, room: int) -> SamplingParams:
    max_tokens = rng.randint(1, max(1, min(room, rng.choice((2, 30, 60)))))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=rng.choice((0, 0, rng.randint(0, max_tokens))),
        temperature=rng.choice((0.0, 0.0, 1.0)),
        seed=rng.randrange(2**32),
        stop_token_ids=rng.choice(((), (), (rng.randrange(EOS + 1, VOCAB_SIZE),))),
        ignore_eos=rng.random() < 0.3,
    )
