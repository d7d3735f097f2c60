"""The overlapped loop on real models, whose steps run on a thread of their own, against the plain loop."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import test_sampling_engine as sampling
from grammar_world import World as GrammarWorld
from test_runner import WAIT_S, generate, random_prompts, run_in_bfloat16, sim_checkpoint
from test_sampling_engine import ASKED, BASE, KV_BLOCK_BYTES, load, prompts, run
from test_structured import asked, sampled

from pagetide.block_pool import BlockPool, chain_root
from pagetide.build import Built, build
from pagetide.config import Settings
from pagetide.engine import Engine
from pagetide.faults import Faults
from pagetide.limits import Limits
from pagetide.loops import OverlappedLoop
from pagetide.request import FinishReason, Output, Request, SamplingParams
from pagetide.runner import Runner
from pagetide.scheduler import Scheduler
from pagetide.step import StepPlan, StepResult

SETTINGS: list[dict[str, int]] = [
    {},
    {"max_step_tokens": 7},
    {"max_running": 3},
    {"num_blocks": 14, "max_preemptions": 9},
    {"prefix_cache": False},
]


@dataclass
class Recorder:
    """A runner that computes nothing, and notes what was asked of it."""

    events: list[str] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    token: int = 1

    def launch(self, plan: StepPlan) -> Recorded:
        self.plans.append(plan)
        self.events.append(f"launch {len(self.plans)}")
        return Recorded(self, plan, len(self.plans))


@dataclass
class Recorded:
    recorder: Recorder
    plan: StepPlan
    number: int

    def sample(self) -> None:
        assert not self.plan.sampled.is_open
        self.recorder.events.append(f"sample {self.number}")

    def result(self) -> StepResult:
        self.recorder.events.append(f"result {self.number}")
        count = len(self.plan.sampled.rows)
        return StepResult([self.recorder.token] * count, [None] * count)


def recorded(params: SamplingParams, num_turns: int, eos: int = 2) -> tuple[Recorder, list[Output]]:
    recorder, outputs = Recorder(), list[Output]()
    scheduler = Scheduler(BlockPool(8), Limits(32, 8, 128), chain_root)
    engine = Engine(scheduler, recorder, 8, lambda stats: None, loop=OverlappedLoop)
    engine.submit(Request(0, array("i", [5] * 4), params, outputs.append, 0.0, frozenset({eos})))
    for _ in range(num_turns):
        engine.turn(wait=False)
    return recorder, outputs


def test_a_step_is_launched_before_the_one_before_it_is_waited_for() -> None:
    recorder, outputs = recorded(SamplingParams(max_tokens=3), num_turns=5)
    expected = [
        "launch 1",
        "launch 2",
        "result 1",
        "sample 2",
        "launch 3",
        "result 2",
        "sample 3",
        "result 3",
    ]
    assert recorder.events == expected
    assert [output.token_ids for output in outputs] == [(1,)] * 3
    assert [list(plan.carried.entries) for plan in recorder.plans] == [[], [0], [0]]
    assert [list(plan.sampled.positions) for plan in recorder.plans] == [[4], [5], [6]]


def test_a_sequence_is_never_planned_beyond_its_length_and_once_beyond_its_end() -> None:
    recorder, _ = recorded(SamplingParams(max_tokens=3), num_turns=8)
    assert len(recorder.plans) == 3
    recorder, outputs = recorded(SamplingParams(max_tokens=9), num_turns=8, eos=1)
    assert len(recorder.plans) == 2
    assert [output.finish_reason for output in outputs] == [FinishReason.STOP]


def test_what_a_row_may_get_is_told_once_the_token_before_is_known() -> None:
    """A frequency penalty counts the token that the step in flight samples."""
    recorder, _ = recorded(SamplingParams(max_tokens=4, frequency_penalty=1.0), num_turns=6)
    edits = [plan.sampled.edits for plan in recorder.plans]
    assert [list(each.penalised.counts) for each in edits if each is not None] == [[], [1], [2], [3]]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_parameter_gives_the_tokens_of_the_plain_loop(
    tiny_llama: Path, settings: dict[str, int]
) -> None:
    asked = list(zip(prompts(), (replace(each, logprobs=2) for each in ASKED), strict=True))
    plain = load(tiny_llama, **settings)
    overlapped = load(tiny_llama, overlap=True, **settings)
    for _ in range(2):
        assert run(overlapped, asked) == run(plain, asked)


@pytest.mark.parametrize("settings", SETTINGS[:4], ids=str)
def test_log_probabilities_of_prompts_are_those_of_the_plain_loop(
    tiny_llama: Path, settings: dict[str, int]
) -> None:
    asked = list(zip(prompts(), sampling.SCORING, strict=True))
    assert run(load(tiny_llama, overlap=True, **settings), asked) == run(load(tiny_llama, **settings), asked)


def test_preempted_between_any_two_steps_a_request_gets_its_tokens(tiny_llama: Path) -> None:
    asked = list(zip(prompts(), ASKED, strict=True))
    overlapped = load(tiny_llama, overlap=True, max_preemptions=9)
    answers = run(overlapped, asked, between=lambda turn: sampling.preempt(overlapped, turn))
    assert answers == run(load(tiny_llama), asked)


def test_grammars_are_followed_to_the_same_tokens(tiny_llama: Path) -> None:
    plain = GrammarWorld(tiny_llama)
    overlapped = GrammarWorld(tiny_llama, plain.grammars, overlap=True)
    requests = [(asked(seed) if seed % 4 else None, sampled(seed, max_tokens=300)) for seed in range(16)]
    try:
        assert [a.tokens for a in overlapped.run(requests)] == [a.tokens for a in plain.run(requests)]
    finally:
        plain.grammars.stop()


def test_simulated_cuda_kernels_give_the_same_tokens(tmp_path: Path) -> None:
    checkpoint, prompts = sim_checkpoint(tmp_path), [[5, 6, 7], list(range(40))]
    plain = run_in_bfloat16(checkpoint, prompts, device="sim")
    assert run_in_bfloat16(checkpoint, prompts, device="sim", overlap="true") == plain


def test_blocks_that_went_to_the_host_and_came_back_give_the_same_tokens(tiny_llama: Path) -> None:
    params, asked = SamplingParams(max_tokens=20, temperature=0.0), random_prompts(16)
    plain = started(tiny_llama, prefix_cache=False)
    tiered = started(tiny_llama, num_blocks=24, overlap=True, host_cache_bytes=200 * KV_BLOCK_BYTES)
    expected = generate(plain, asked, params)
    for _ in range(4):
        assert generate(tiered, asked, params) == expected
    assert tiered.engine._scheduler.tier.num_used > 24
    for built in (plain, tiered):
        assert built.engine.drain(WAIT_S)


def started(checkpoint: Path, faults: str = "", num_blocks: int = 256, **settings: Any) -> Built:
    values = {"model": str(checkpoint), "device": "cpu", "kv_cache_bytes": num_blocks * KV_BLOCK_BYTES}
    planted = Faults({"PAGETIDE_FAULTS": faults})
    built = build(Settings.from_mapping(values | settings), checkpoint, lambda stats: None, faults=planted)
    built.engine.start()
    return built


def test_drain_waits_for_all_that_was_taken(tiny_llama: Path) -> None:
    built = started(tiny_llama, overlap=True)
    answers = submit(built, prompts(), BASE)
    assert built.engine.drain(WAIT_S)
    expected = run(load(tiny_llama), [(prompt, BASE) for prompt in prompts()])
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]


def submit(built: Built, asked: Sequence[list[int]], params: SamplingParams) -> list[Ended]:
    answers = [Ended() for _ in asked]
    for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True)):
        ends = frozenset({sampling.EOS})
        built.engine.submit(Request(number, array("i", prompt), params, answer.take, 0.0, ends))
    return answers


@dataclass
class Ended:
    tokens: list[int] = field(default_factory=list)
    error: str | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def take(self, output: Output) -> None:
        self.tokens += output.token_ids
        self.error = output.error
        if output.finish_reason is not None:
            self.over.set()

    def wait(self) -> Ended:
        assert self.over.wait(WAIT_S)
        return self


def test_a_step_that_can_not_be_launched_ends_its_requests_with_the_tokens_they_had(tiny_llama: Path) -> None:
    built = started(tiny_llama, faults="step=4", overlap=True)
    (struck,) = submit(built, prompts()[:1], BASE)
    assert struck.wait().error == "PlantedError: planted at step, pass 4"
    expected = run(load(tiny_llama), [(prompts()[0], BASE)])[0].tokens
    assert struck.tokens == expected[:3]
    (next_one,) = submit(built, prompts()[:1], BASE)
    assert next_one.wait().tokens == expected
    assert built.engine.drain(WAIT_S)


def test_a_step_that_fails_under_way_ends_its_requests_and_those_behind_it_start_again(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newcomer was planned onto a prefix that the failed step was to write."""
    forward, numbers = Runner.forward, iter(range(1, 1000))
    gate = threading.Event()

    def failing(self: Runner, *args: Any) -> Any:
        number = next(numbers)
        if number == 2:
            assert gate.wait(WAIT_S)
            raise RuntimeError("planted")
        return forward(self, *args)

    monkeypatch.setattr(Runner, "forward", failing)
    built = load(tiny_llama, overlap=True, max_step_tokens=64)
    long = [7] * 100
    answers = submit(built, [long], BASE)
    for _ in range(2):
        built.engine.turn(wait=False)
    newcomer = Ended()
    built.engine.submit(Request(9, array("i", [7] * 80), BASE, newcomer.take, 0.0))
    threading.Timer(0.1, gate.set).start()
    while not (answers[0].over.is_set() and newcomer.over.is_set()):
        built.engine.turn(wait=False)
    assert answers[0].error == "RuntimeError: planted"
    monkeypatch.undo()
    assert newcomer.tokens == run(load(tiny_llama), [([7] * 80, BASE)])[0].tokens
    built.engine._scheduler.check()


def test_a_row_left_without_any_token_ends_alone_though_the_next_step_is_launched(tiny_llama: Path) -> None:
    """Its row goes on in the step in flight, from a token that there is not."""
    everything = tuple((token,) for token in range(sampling.VOCAB_SIZE))
    stuck = replace(BASE, bad_word_ids=everything, max_tokens=9)
    built = load(tiny_llama, overlap=True)
    answers = submit(built, prompts()[:2], BASE)
    failed = Ended()
    built.engine.submit(Request(9, array("i", [3, 4]), stuck, failed.take, 0.0))
    while not all(each.over.is_set() for each in (*answers, failed)):
        built.engine.turn(wait=False)
    assert failed.error is not None
    assert "no token is left" in failed.error
    expected = run(load(tiny_llama), [(prompt, BASE) for prompt in prompts()[:2]])
    assert [each.tokens for each in answers] == [each.tokens for each in expected]


def test_a_move_to_the_host_waits_for_the_steps_launched_before_it(tiny_llama: Path) -> None:
    built = load(tiny_llama, overlap=True)
    thread = built.engine._loop._runner  # type: ignore[attr-defined]
    gate, order = threading.Event(), list[str]()
    thread._thread.submit(lambda: (gate.wait(WAIT_S), order.append("step")))
    wait = thread.fence()
    mover = threading.Thread(target=lambda: (wait(), order.append("move")))
    mover.start()
    gate.set()
    mover.join(WAIT_S)
    assert order == ["step", "move"]


def test_an_aborted_request_gets_nothing_from_the_steps_in_flight(tiny_llama: Path) -> None:
    built = load(tiny_llama, overlap=True)
    gone, stays = submit(built, prompts()[:2], BASE)
    for _ in range(4):
        built.engine.turn(wait=False)
    built.engine.abort(0)
    while not stays.over.is_set():
        built.engine.turn(wait=False)
    built.engine.turn(wait=False)
    plain = run(load(tiny_llama), [(prompt, BASE) for prompt in prompts()[:2]])
    assert stays.tokens == plain[1].tokens
    assert gone.over.is_set()
    assert gone.tokens == plain[0].tokens[:3]
    assert built.engine._scheduler.pool.num_held == 0
