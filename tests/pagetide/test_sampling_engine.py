"""Every parameter that changes logits, and log-probabilities of prompts, on the real engine.

The reference computes a sequence anew for each token, alone, and edits its logits by definition.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from model_world import logits_of, random_tokens
from sampling_reference import edited
from tiny_checkpoints import make_checkpoint

from pagetide import sampler, weights
from pagetide.build import Built, build
from pagetide.config import Settings
from pagetide.logit_edits import TokenMask
from pagetide.model import Decoder
from pagetide.request import Output, Request, SamplingParams, TokenLogprobs
from pagetide.step import SampledRows

KV_BLOCK_BYTES = 3 * 2 * 2 * 16 * 16 * 4
VOCAB_SIZE = 259
EOS = 2
NUM_OUTPUT = 24

ALLOWED = TokenMask.of(range(60, 64))
BASE = SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0)
ASKED = (
    BASE,
    replace(BASE, repetition_penalty=1.3),
    replace(BASE, presence_penalty=1.5, frequency_penalty=0.7),
    replace(BASE, repetition_penalty=0.8, frequency_penalty=-0.3),
    replace(BASE, allowed_token_ids=TokenMask.of(range(100, 140))),
    replace(BASE, logit_bias=((77, 8.0), (78, 7.5), (EOS, -100.0))),
    replace(BASE, min_tokens=NUM_OUTPUT, logit_bias=((EOS, 100.0),)),
    replace(BASE, bad_word_ids=tuple((token,) for token in range(3, 130))),
    replace(BASE, allowed_token_ids=ALLOWED, bad_word_ids=((60, 61), (61, 62, 63), (62, 62))),
    replace(BASE, temperature=1.0, seed=5, repetition_penalty=1.2, presence_penalty=0.5, top_p=0.9),
    replace(BASE, temperature=1.0, seed=6, allowed_token_ids=TokenMask.of(range(60, 70)), min_p=0.01),
    replace(BASE, temperature=0.8, seed=7, bad_word_ids=((70, 71),), logit_bias=((70, 20.0), (71, 20.0))),
)


@dataclass(slots=True)
class Answer:
    tokens: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    ended: bool = False

    def take(self, output: Output) -> None:
        assert output.error is None, output.error
        assert not output.prompt_logprobs or not self.tokens, "the prompt's come first"
        self.tokens += output.token_ids
        self.prompt_logprobs += output.prompt_logprobs
        self.ended = output.finish_reason is not None


def load(checkpoint: Path, num_blocks: int = 256, **settings: int | str) -> Built:
    values: dict[str, int | str] = {
        "model": str(checkpoint),
        "device": "cpu",
        "kv_cache_bytes": num_blocks * KV_BLOCK_BYTES,
    }
    return build(Settings.from_mapping(values | settings), checkpoint, on_step=lambda stats: None)


def run(
    built: Built,
    asked: Sequence[tuple[list[int], SamplingParams]],
    between: Callable[[int], object] = lambda turn: None,
) -> list[Answer]:
    """All at once, in this thread; `between` is called before each turn of the loop with its number."""
    answers = [Answer() for _ in asked]
    for at, (prompt, params) in enumerate(asked):
        ends = frozenset({EOS})
        request = Request(at, array("i", prompt), params, answers[at].take, time.monotonic(), ends)
        built.engine.submit(request)
    turns = itertools.count(1)
    while not all(answer.ended for answer in answers):
        between(next(turns))
        built.engine.turn(wait=False)
    built.engine._scheduler.check()
    return answers


def preempt(built: Built, turn: int) -> None:
    """Every second turn someone loses all blocks."""
    scheduler = built.engine._scheduler
    victims = [s for s in scheduler.running if not scheduler.tenants.is_protected(s)]
    if turn % 2 == 0 and victims:
        scheduler._roster.preempt(victims[turn // 2 % len(victims)])


@pytest.fixture(scope="module")
def decoder(tiny_llama: Path) -> Decoder:
    return weights.load(tiny_llama, dtype=torch.float32, device=torch.device("cpu"))


@cache
def prompts() -> list[list[int]]:
    """Most share a prefix of blocks, and some of their tokens come again in the output."""
    shared = random_tokens(40, VOCAB_SIZE, seed=1)
    return [
        shared[: (0, 33, 40)[i % 3]] + random_tokens(5 + 3 * i, VOCAB_SIZE, seed=10 + i)
        for i in range(len(ASKED))
    ]


@pytest.fixture(scope="module")
def expected(decoder: Decoder) -> list[list[int]]:
    return [slowly(decoder, prompt, params) for prompt, params in zip(prompts(), ASKED, strict=True)]


def slowly(decoder: Decoder, prompt: list[int], params: SamplingParams) -> list[int]:
    output: list[int] = []
    while len(output) < params.max_tokens:
        logits = logits_of(decoder, prompt + output)[-1].numpy()
        edits = torch.from_numpy(edited(logits, params, prompt, output, [EOS]))
        rows = SampledRows(
            array("q", [0]), [params], array("Q", [params.seed or 0]), array("Q", [len(prompt + output)])
        )
        output += sampler.sample(edits[None], rows).read()[0]
        if output[-1] == EOS and len(output) > params.min_tokens:
            break
    return output


def test_the_reference_shows_what_each_parameter_does(expected: list[list[int]]) -> None:
    """So that the comparisons below compare something."""
    allowed, biased, held_back, without_words, patterns = expected[4:9]
    assert set(allowed) <= set(range(100, 140))
    assert {77, 78} & set(biased)
    assert len(held_back) == NUM_OUTPUT
    assert EOS not in held_back
    assert not set(without_words) & set(range(3, 130))
    pairs = set(itertools.pairwise(patterns))
    assert not pairs & {(60, 61), (62, 62)}
    assert len(set(expected[2])) > len(set(expected[0]))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_step_tokens": 7},
        {"max_step_tokens": 64, "max_running": 3},
        {"num_blocks": 20},
        {"num_blocks": 20, "host_cache_bytes": 100 * KV_BLOCK_BYTES},
        {"prefix_cache": False},
    ],
    ids=str,
)
def test_batches_chunks_hits_and_preemptions_change_no_token(
    tiny_llama: Path, expected: list[list[int]], settings: dict[str, int]
) -> None:
    """The second run is warm: its prompts hit what the first one left, and the order is another."""
    built = load(tiny_llama, **settings)
    asked = list(zip(prompts(), ASKED, strict=True))
    assert [answer.tokens for answer in run(built, asked)] == expected
    assert [answer.tokens for answer in run(built, asked[::-1])] == expected[::-1]


def test_forced_preemptions_change_no_token(tiny_llama: Path, expected: list[list[int]]) -> None:
    built = load(tiny_llama, max_step_tokens=48, max_preemptions=9)
    asked = list(zip(prompts(), ASKED, strict=True))
    answers = run(built, asked, between=lambda turn: preempt(built, turn))
    assert [answer.tokens for answer in answers] == expected


def test_the_torch_layers_give_the_tokens_of_the_compiled_ones(
    tiny_llama: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGETIDE_CPU_STEP", "torch")
    asked = list(zip(prompts(), ASKED, strict=True))
    assert [answer.tokens for answer in run(load(tiny_llama), asked)] == expected


def test_the_sim_device_edits_and_scores_as_the_cpu_does(tmp_path: Path) -> None:
    """Over simulated CUDA kernels, in bfloat16 with heads of 64, as they are built for."""
    checkpoint = make_checkpoint(
        tmp_path / "llama", hidden_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )
    asked = [
        ([5, 6, 7], replace(params, max_tokens=6, prompt_logprobs=2)) for params in (*ASKED[1:6], *ASKED[7:9])
    ]
    cpu, sim = (run(load(checkpoint, device=device, dtype="bfloat16"), asked) for device in ("cpu", "sim"))
    assert [answer.tokens for answer in sim] == [answer.tokens for answer in cpu]
    for got, want in zip(sim, cpu, strict=True):
        own = [each.logprob for each in want.prompt_logprobs]
        assert len(own) == 2
        assert [each.logprob for each in got.prompt_logprobs] == pytest.approx(own, abs=0.05)


def test_neighbours_that_leave_change_no_token(tiny_llama: Path, expected: list[list[int]]) -> None:
    built = load(tiny_llama, max_running=6)
    asked = list(zip(prompts(), ASKED, strict=True))
    leaving = list(range(0, len(asked), 3))

    def leave(turn: int) -> None:
        if turn % 4 == 0 and leaving:
            built.engine.abort(leaving.pop())

    answers = [answer.tokens for answer in run(built, asked, between=leave)]
    for got, want in zip(answers, expected, strict=True):
        assert got == want[: len(got)]
    staying = [i for i in range(len(asked)) if i % 3]
    assert [answers[i] for i in staying] == [expected[i] for i in staying]


def scored(decoder: Decoder, prompt: list[int], num_top: int) -> list[TokenLogprobs]:
    """Of the second to the last token, by their definition."""
    logprobs = logits_of(decoder, prompt).log_softmax(-1)
    found = []
    for row, token in zip(logprobs, prompt[1:], strict=False):
        own = float(row[token])
        order = row.argsort(descending=True, stable=True)[:num_top].tolist()
        top = tuple((each, float(row[each])) for each in order)
        found.append(TokenLogprobs(own, 1 + int((row > row[token]).sum()), top))
    return found


def assert_same_scores(got: Sequence[TokenLogprobs], want: Sequence[TokenLogprobs]) -> None:
    assert [each.rank for each in got] == [each.rank for each in want]
    assert [[t for t, _ in each.top] for each in got] == [[t for t, _ in each.top] for each in want]
    assert [each.logprob for each in got] == pytest.approx([each.logprob for each in want], abs=1e-4)
    got_top, want_top = ([x for each in side for _, x in each.top] for side in (got, want))
    assert got_top == pytest.approx(want_top, abs=1e-4)


SCORING = [replace(BASE, prompt_logprobs=i % 4) if i % 4 else BASE for i in range(len(ASKED))]


@pytest.mark.parametrize(
    ("settings", "preempts"),
    [
        ({}, False),
        ({"max_step_tokens": 7}, False),
        ({"num_blocks": 20, "host_cache_bytes": 100 * KV_BLOCK_BYTES}, False),
        ({"max_step_tokens": 16}, True),
    ],
    ids=str,
)
def test_every_prompt_token_is_told_once_whatever_was_cached_chunked_or_preempted(
    tiny_llama: Path, decoder: Decoder, settings: dict[str, int], preempts: bool
) -> None:
    built = load(tiny_llama, max_preemptions=9, **settings)
    plain = [answer.tokens for answer in run(built, [(prompt, BASE) for prompt in prompts()])]
    for _ in range(2):
        answers = run(
            built,
            list(zip(prompts(), SCORING, strict=True)),
            between=lambda turn: preempt(built, turn) if preempts else None,
        )
        assert [answer.tokens for answer in answers] == plain
        for answer, prompt, params in zip(answers, prompts(), SCORING, strict=True):
            num_top = params.prompt_logprobs
            want = [] if num_top is None else scored(decoder, prompt, num_top)
            assert_same_scores(answer.prompt_logprobs, want)


def test_a_prompt_of_one_token_has_nothing_to_tell(tiny_llama: Path) -> None:
    (answer,) = run(load(tiny_llama), [([5], replace(BASE, prompt_logprobs=2))])
    assert answer.prompt_logprobs == []
    assert len(answer.tokens) == NUM_OUTPUT


def test_a_few_rows_of_the_head_are_computed_at_a_time(
    tiny_llama: Path, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt's logits never lie in memory together."""
    most = 16
    monkeypatch.setattr("pagetide.runner._SCORED_BYTES", most * 4 * VOCAB_SIZE)
    rows: list[int] = []
    score = Decoder.score

    def counted(self: Decoder, states: torch.Tensor) -> torch.Tensor:
        rows.append(len(states))
        return score(self, states)

    monkeypatch.setattr(Decoder, "score", counted)
    prompt = random_tokens(200, VOCAB_SIZE, seed=3)
    (answer,) = run(load(tiny_llama), [(prompt, replace(BASE, max_tokens=1, prompt_logprobs=0))])
    assert max(rows) == most
    assert sum(rows) == len(prompt) - 1, "the likeliest token after the last is chosen without logits"
    monkeypatch.undo()
    assert_same_scores(answer.prompt_logprobs, scored(decoder, prompt, 0))
