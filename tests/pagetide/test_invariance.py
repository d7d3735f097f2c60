"""A request's tokens depend on the request alone, on the real engine with the default model.

Whatever else runs, however its prompt is chunked, hit or miss, preempted or not, whoever leaves beside it:
token for token the same as alone, and in float32 the same log-probabilities.

The default model's linears on a CPU are packed. `fixed` are those that `deterministic` takes where they can't
be, as on a GPU; they are slower, so that only some of the requests are run unless PAGETIDE_INVARIANCE=all.
"""

from __future__ import annotations

import itertools
import os
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pagetide import weights
from pagetide.build import Built, build
from pagetide.config import Settings
from pagetide.layers import FixedLinear
from pagetide.request import Output, Request, SamplingParams

NUM_REQUESTS = 100
NUM_WITH_FIXED = NUM_REQUESTS if os.environ.get("PAGETIDE_INVARIANCE") == "all" else 20
NUM_OUTPUT = 8
BLOCK_BYTES = {"float32": 2 * 3 * 16 * 64 * 4 * 30, "bfloat16": 2 * 3 * 16 * 64 * 2 * 30}
VOCAB_SIZE = 49_152

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True, slots=True)
class Model:
    """The default model in one dtype, and how many requests it is asked."""

    path: Path
    dtype: str
    num_requests: int


@dataclass(slots=True)
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False

    def take(self, output: Output) -> None:
        assert output.error is None, output.error
        self.tokens += output.token_ids
        self.logprobs += [each.logprob for each in output.logprobs]
        self.ended = output.finish_reason is not None


def prompts(count: int) -> list[list[int]]:
    """A third of them share a long prefix, with ends of their own."""
    rng = random.Random(5)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(64)]
    return [
        shared[: rng.choice((0, 0, 33, 64))] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 60))]
        for _ in range(NUM_REQUESTS)
    ][:count]


def params(index: int) -> SamplingParams:
    temperature = 0.8 if index % 4 == 0 else 0.0
    return SamplingParams(NUM_OUTPUT, temperature=temperature, seed=index, ignore_eos=True, logprobs=0)


def load(model: Model, num_blocks: int = 1500, **settings: int | bool) -> Built:
    values = {
        "model": str(model.path),
        "device": "cpu",
        "dtype": model.dtype,
        "kv_cache_bytes": num_blocks * BLOCK_BYTES[model.dtype],
    }
    return build(Settings.from_mapping(values | settings), model.path.parent, on_step=lambda stats: None)


def run_all(built: Built, model: Model, between: Callable[[int], object] = lambda turn: None) -> list[Answer]:
    return run(built, list(enumerate(prompts(model.num_requests))), between)


def run(
    built: Built,
    asked: Sequence[tuple[int, list[int]]],
    between: Callable[[int], object] = lambda turn: None,
) -> list[Answer]:
    """All at once, in this thread; `between` is called before each turn of the loop with its number."""
    answers = [Answer() for _ in asked]
    for at, (index, prompt) in enumerate(asked):
        request = Request(at, array("i", prompt), params(index), answers[at].take, 0.0)
        built.engine.submit(request)
    turns = itertools.count(1)
    while not all(answer.ended for answer in answers):
        between(next(turns))
        built.engine.turn(wait=False)
    return answers


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float32 fixed"])
def model(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[Model]:
    dtype, _, linears = request.param.partition(" ")
    with pytest.MonkeyPatch.context() as patch:
        if linears == "fixed":
            patch.setattr(weights, "linear_for", lambda *args: FixedLinear)
        yield Model(smollm2_path, dtype, NUM_WITH_FIXED if linears == "fixed" else NUM_REQUESTS)


@pytest.fixture(scope="module")
def alone(model: Model) -> list[Answer]:
    built = load(model, prefix_cache=False)
    return [run(built, [(index, prompt)])[0] for index, prompt in enumerate(prompts(model.num_requests))]


def assert_same(answers: Sequence[Answer], expected: Sequence[Answer], model: Model) -> None:
    different = [i for i, (a, b) in enumerate(zip(answers, expected, strict=True)) if a.tokens != b.tokens]
    assert not different, f"{len(different)} of {len(expected)} requests differ, first {different[0]}"
    if model.dtype == "float32":
        for answer, reference in zip(answers, expected, strict=True):
            assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_running": 8, "prefix_cache": False},
        {"max_running": 44, "prefix_cache": False},
        {"max_step_tokens": 16, "max_running": 8},
        {"max_step_tokens": 64, "max_running": 8},
        {"max_step_tokens": 512, "max_running": 8},
        {"num_blocks": 60, "max_running": 44, "max_step_tokens": 64},
    ],
    ids=lambda settings: ", ".join(f"{name} {value}" for name, value in settings.items()),
)
def test_batches_chunks_hits_and_preemptions_change_no_token(
    model: Model, alone: list[Answer], settings: dict[str, int]
) -> None:
    """The second run is warm: its prompts hit what the first one left."""
    built = load(model, **settings)
    for _ in range(2):
        assert_same(run_all(built, model), alone, model)


def test_forced_preemptions_change_no_token(model: Model, alone: list[Answer]) -> None:
    """Every second turn someone loses all blocks, in a pool too small for all to come back as hits."""
    built = load(model, num_blocks=60, max_running=16, max_step_tokens=128, max_preemptions=5)
    preempted: list[int] = []
    answers = run_all(built, model, between=lambda turn: preempted.extend(preempt(built, turn)))
    assert_same(answers, alone, model)
    assert len(preempted) > model.num_requests // 5


def preempt(built: Built, turn: int) -> list[int]:
    scheduler = built.engine._scheduler
    victims = [s for s in scheduler.running if not scheduler.tenants.is_protected(s)][:: max(1, turn % 4)]
    if turn % 2 or not victims:
        return []
    scheduler._roster.preempt(victims[0])
    return [victims[0].id]


def test_cancelled_neighbours_change_no_token(model: Model, alone: list[Answer]) -> None:
    built = load(model, max_running=16)
    leaving = range(0, model.num_requests, 5)
    going = list(leaving)

    def leave(turn: int) -> None:
        if turn % 3 == 0 and going:
            built.engine.abort(going.pop())

    answers = run_all(built, model, between=leave)
    for index in leaving:
        assert answers[index].tokens == alone[index].tokens[: len(answers[index].tokens)]
    staying = [index for index in range(model.num_requests) if index not in leaving]
    assert_same([answers[i] for i in staying], [alone[i] for i in staying], model)
