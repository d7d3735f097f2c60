"""One seed's world: the machine, and everything that clients and bad luck do to it, before it starts."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, replace
from enum import Enum

from simulation.pure_model import EOS, VOCAB_SIZE

from pagetide.config import BLOCK_SIZE
from pagetide.limits import Limits
from pagetide.request import SamplingParams
from pagetide.tenant_policy import TenantPolicies, TenantPolicy

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
    """A `misled` scheduler believes that outputs are short: it admits too much and must preempt.

    Step n takes `step_s + token_s * tokens` of simulated time; those in `failing_steps` raise.
    """

    num_blocks: int
    limits: Limits
    policies: TenantPolicies
    prefix_cache: bool
    misled: bool
    num_host_slots: int
    step_s: float
    token_s: float
    failing_steps: frozenset[int]
    arrivals: tuple[Arrival, ...]


class Flavour(Enum):
    """What a world is about.

    MIXED: anything goes. CROWDED: many small requests outgrow the pool. POPULAR: all want one prefix.
    RETURNING: more prefixes than the pool holds come again and again.
    """

    MIXED = "mixed"
    CROWDED = "crowded"
    POPULAR = "popular"
    RETURNING = "returning"


def make_scenario(seed: int) -> Scenario:
    """The same seed always gives the same world."""
    rng = random.Random(seed)
    flavour = rng.choice(tuple(Flavour))
    num_blocks = _num_blocks(rng, flavour)
    return Scenario(
        num_blocks=num_blocks,
        limits=_limits(rng, num_blocks, flavour),
        policies=TenantPolicies({name: _policy(rng) for name in ("amber", "*")}),
        prefix_cache=rng.random() < 0.9,
        misled=rng.random() < (0.9 if flavour is Flavour.CROWDED else 0.5),
        num_host_slots=rng.choice((8, 40)) if flavour is Flavour.RETURNING else rng.choice((0, 0, 2, 10)),
        step_s=0.01,
        token_s=rng.choice((0.0001, 0.001)),
        failing_steps=frozenset(rng.randrange(1, 60) for _ in range(rng.choice((0, 0, 1, 4)))),
        arrivals=_arrivals(rng, num_blocks * BLOCK_SIZE, flavour),
    )


def _num_blocks(rng: random.Random, flavour: Flavour) -> int:
    if flavour is Flavour.CROWDED:
        return rng.randint(4, 9)
    if flavour is Flavour.POPULAR:
        return rng.randint(8, 24)
    if flavour is Flavour.RETURNING:
        return rng.randint(6, 9)
    return rng.choice((1, 2, 3, rng.randint(4, 8), rng.randint(6, 24)))


def _limits(rng: random.Random, num_blocks: int, flavour: Flavour) -> Limits:
    return Limits(
        max_step_tokens=rng.choice((1, 5, 16, 33, 64, 512)),
        max_running=8 if flavour is Flavour.CROWDED else rng.choice((1, 2, 4, 6, 8)),
        max_model_len=num_blocks * BLOCK_SIZE,
        max_preemptions=rng.choice((0, 1, 3, 3)),
        ageing_s=rng.choice((0.01, 0.3, 10.0)),
        target_itl_s=rng.choice((None, 0.02)),
        offline=rng.random() < 0.1,
    )


def _policy(rng: random.Random) -> TenantPolicy:
    return TenantPolicy(
        weight=rng.choice((1.0, 1.0, 0.5, 3.0)),
        max_running=rng.choice((None, None, 1, 2)),
        tokens_per_s=rng.choice((None, None, 100.0, 400.0)),
        prefix_group=rng.choice((None, None, "everyone")),
    )


def _arrivals(rng: random.Random, longest: int, flavour: Flavour) -> tuple[Arrival, ...]:
    span_s = rng.choice((0.0, 0.3, 1.0))
    prefixes = _prefixes(rng, longest, flavour)
    arrivals: list[Arrival] = []
    for _ in range(30 if flavour is Flavour.RETURNING else rng.choice((3, 8, 8, 25))):
        prompt = _prompt(rng, rng.choice(prefixes), longest)
        same = flavour in (Flavour.POPULAR, Flavour.RETURNING) and rng.random() < 0.8
        tenant, salt = (TENANTS[0], SALTS[0]) if same else (rng.choice(TENANTS), rng.choice(SALTS))
        arrivals += _ask(
            rng, rng.random() * span_s, prompt, _params(rng, longest - len(prompt)), tenant, salt
        )
    return tuple(sorted(arrivals, key=lambda arrival: arrival.at_s))


def _prefixes(rng: random.Random, longest: int, flavour: Flavour) -> list[array[int]]:
    if flavour is Flavour.POPULAR:
        return [_tokens(rng, rng.randint(2 * BLOCK_SIZE, longest // 2))]
    if flavour is Flavour.RETURNING:
        return [_tokens(rng, rng.randint(2 * BLOCK_SIZE, 3 * BLOCK_SIZE)) for _ in range(4)]
    most = 20 if flavour is Flavour.CROWDED else max(1, rng.choice((longest - 2, longest // 2, longest // 4)))
    return [_tokens(rng, rng.randint(1, most)) for _ in range(rng.randint(1, 3))]


def _ask(
    rng: random.Random, at_s: float, prompt: array[int], params: SamplingParams, tenant: str, salt: bytes
) -> list[Arrival]:
    """One client's request: `n` samples of one prompt are n requests that arrive together."""
    priority = rng.choice((0, 0, 0, -1, 2))
    timeout_s = rng.choice((None, None, None, None, None, rng.random()))
    abort_after_s = rng.choice((None, None, None, None, None, rng.random() * 0.4))
    return [
        Arrival(at_s, prompt, replace(params, seed=seed), tenant, priority, salt, timeout_s, abort_after_s)
        for seed in range(rng.choice((1, 1, 1, 1, 2, 3)))
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
    max_tokens = rng.randint(1, max(1, min(room, rng.choice((2, 30, 60, 120)))))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=rng.choice((0, 0, rng.randint(0, max_tokens))),
        temperature=rng.choice((0.0, 0.0, 1.0)),
        stop_token_ids=rng.choice(((), (), (rng.randrange(EOS + 1, VOCAB_SIZE),))),
        ignore_eos=rng.random() < 0.3,
    )
