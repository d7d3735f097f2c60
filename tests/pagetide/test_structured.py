"""Whatever is sampled under a grammar follows it, on the real engine, whatever happens to the request."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from grammar_world import Answer, World
from random_schemas import random_schema
from sentencepiece_checkpoints import make_sentencepiece_checkpoint
from tiny_checkpoints import make_checkpoint

from pagetide.request import FinishReason, Request, SamplingParams

MAX_TOKENS = 1500
TINY_BLOCK_BYTES = 2 * 2 * 16 * 16 * 4 * 3
"""Keys and values, 2 KV heads, 16 tokens of 16 float32 each, 3 layers."""

PROMPT = "Answer in JSON, as short as you can, and end it. " * 2


def sampled(seed: int, **params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": MAX_TOKENS, "seed": seed} | params)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("long") / "llama", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def world(checkpoint: Path) -> Iterator[World]:
    world = World(checkpoint, grammar_cache_bytes="2GiB")
    yield world
    world.grammars.stop()


def asked(seed: int) -> dict[str, Any]:
    """Two of three without whitespace, of which a model with random weights writes as much as it may."""
    return {"structured_outputs": {"json": random_schema(seed), "disable_any_whitespace": seed % 3 > 0}}


def check(world: World, answers: list[Answer]) -> int:
    """How many finished; each of them must follow its schema."""
    for seed, answer in enumerate(answers):
        assert answer.error is None, answer.error
        if answer.reason is FinishReason.STOP:
            jsonschema.validate(json.loads(world.text(answer)), random_schema(seed))
    return sum(answer.reason is FinishReason.STOP for answer in answers)


def run_schemas(world: World, count: int, preempt_each: int = 0) -> list[Answer]:
    return world.run([(asked(seed), sampled(seed)) for seed in range(count)], PROMPT, preempt_each)


def test_outputs_follow_their_schemas(world: World) -> None:
    answers = run_schemas(world, 120)
    assert check(world, answers) >= 114


@pytest.fixture(scope="module")
def undisturbed(world: World) -> list[Answer]:
    return run_schemas(world, 500)


@pytest.mark.slow
def test_500_outputs_follow_their_schemas(world: World, undisturbed: list[Answer]) -> None:
    assert check(world, undisturbed) >= 475


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"max_step_tokens": 16, "max_running": 8},
        {"kv_cache_bytes": 105 * TINY_BLOCK_BYTES, "prefix_cache": False},
        {"kv_cache_bytes": 105 * TINY_BLOCK_BYTES},
    ],
    ids=["smallest chunks", "small pool without prefix hits", "small pool"],
)
def test_500_outputs_are_the_same_whatever_happens_to_the_requests(
    checkpoint: Path, world: World, undisturbed: list[Answer], settings: dict[str, Any]
) -> None:
    answers = run_schemas(World(checkpoint, world.grammars, **settings), 500)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in undisturbed]
    assert settings.get("prefix_cache", True) or not any(answer.num_hits for answer in answers)


@pytest.mark.slow
def test_500_outputs_are_the_same_with_preemptions(
    checkpoint: Path, world: World, undisturbed: list[Answer]
) -> None:
    answers = run_schemas(World(checkpoint, world.grammars, max_preemptions=9), 500, preempt_each=3)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in undisturbed]
    assert sum(answer.num_preemptions > 0 for answer in answers) >= 100


def test_outputs_of_a_sentencepiece_model_with_padded_logits_follow_their_schemas(tmp_path: Path) -> None:
    world = World(make_sentencepiece_checkpoint(tmp_path / "tiny"), dtype="bfloat16")
    answers = world.run([(asked(seed), sampled(seed, max_tokens=400)) for seed in range(40)])
    world.grammars.stop()
    assert check(world, answers) >= 30


def test_outputs_of_the_default_model_follow_their_schemas(smollm2_path: Path) -> None:
    world = World(smollm2_path, max_running=32)
    answers = world.run([(asked(seed), sampled(seed, max_tokens=150)) for seed in range(32)])
    world.grammars.stop()
    assert check(world, answers) >= 16


@pytest.mark.parametrize(
    ("parameters", "pattern"),
    [
        ({"guided_regex": r"(\d{1,3}\.){3}\d{1,3}"}, r"(\d{1,3}\.){3}\d{1,3}"),
        ({"guided_choice": ["yes", "no", 'it "depends"\n', "größe 🙂"]}, '(yes|no|it "depends"\n|größe 🙂)'),
        (
            {"guided_grammar": 'root ::= "(" item* ")"\nitem ::= [a-c] | root'},
            r"\([abc()]*\)",
        ),
        ({"structured_outputs": {"json_object": True}}, r"\{.*\}"),
        (
            {
                "structured_outputs": {
                    "structural_tag": {
                        "type": "structural_tag",
                        "format": {
                            "type": "tag",
                            "begin": "<call>",
                            "content": {
                                "type": "json_schema",
                                "json_schema": {"type": "integer", "minimum": 0, "maximum": 99},
                            },
                            "end": "</call>",
                        },
                    }
                }
            },
            r"<call>\d{1,2}</call>",
        ),
    ],
    ids=["regex", "choice", "EBNF", "JSON object", "structural tag"],
)
def test_every_kind_of_grammar_is_followed(world: World, parameters: dict[str, Any], pattern: str) -> None:
    answers = world.run([(parameters, sampled(seed, max_tokens=600)) for seed in range(8)])
    finished = [world.text(answer) for answer in answers if answer.reason is FinishReason.STOP]
    assert len(finished) >= 4
    for text in finished:
        assert re.fullmatch(pattern, text, re.DOTALL), text
        if "JSON" in str(parameters) or "json_object" in str(parameters):
            json.loads(text)


def test_a_request_without_a_grammar_is_not_changed_by_one_beside_it(world: World) -> None:
    free = (None, sampled(3, max_tokens=40))
    (alone,) = world.run([free])
    beside, _ = world.run([free, (asked(1), sampled(1))])
    assert beside.tokens == alone.tokens


def test_the_same_seed_gives_the_same_output_alone_and_in_a_batch(world: World) -> None:
    alone = [world.run([(asked(seed), sampled(seed))])[0].tokens for seed in range(4)]
    together = world.run([(asked(seed), sampled(seed)) for seed in range(4)])
    assert [answer.tokens for answer in together] == alone


def test_greedy_sampling_takes_the_likeliest_token_that_fits(world: World) -> None:
    (answer,) = world.run([({"guided_choice": ["b", "c"]}, sampled(0, temperature=0.0))])
    assert world.text(answer) in ("b", "c")
    assert answer.reason is FinishReason.STOP


def test_max_tokens_ends_an_output_before_its_grammar_does(world: World) -> None:
    (answer,) = world.run([({"guided_regex": "a{20}"}, sampled(0, max_tokens=7))])
    assert (world.text(answer), answer.reason) == ("a" * 7, FinishReason.LENGTH)


def test_the_end_comes_only_where_the_grammar_allows_it(world: World) -> None:
    """A model that wants nothing but its end token still writes the whole structure."""
    (answer,) = world.run([({"guided_regex": "ab{3}"}, sampled(0))])
    assert (world.text(answer), answer.reason) == ("abbb", FinishReason.STOP)
    assert answer.tokens[-1] in world.built.eos_token_ids


def test_min_tokens_holds_the_end_back_where_more_may_come(world: World) -> None:
    answers = world.run([({"guided_regex": "a{2,30}"}, sampled(seed, min_tokens=20)) for seed in range(8)])
    for answer in answers:
        assert answer.reason is FinishReason.STOP
        assert 20 <= len(answer.tokens) <= 31


def test_min_tokens_gives_way_where_the_grammar_is_at_its_end(world: World) -> None:
    (answer,) = world.run([({"guided_regex": "ab"}, sampled(0, min_tokens=20))])
    assert (world.text(answer), answer.reason) == ("ab", FinishReason.STOP)


def test_a_stop_token_ends_an_output_inside_its_grammar(world: World) -> None:
    (b,) = world.built.tokenizer.encode("b")
    (answer,) = world.run([({"guided_regex": "aab+"}, sampled(0, stop_token_ids=(b,)))])
    assert (world.text(answer), answer.reason) == ("aab", FinishReason.STOP)


def test_an_aborted_request_leaves_the_others_alone(world: World) -> None:
    expected = world.run([(asked(seed), sampled(seed)) for seed in range(3)])
    gone = Answer()
    request = Request(
        id=99,
        prompt_ids=array("i", world.built.tokenizer.encode("x")),
        params=sampled(9),
        sink=gone.take,
        arrival_s=0.0,
        eos_token_ids=world.built.eos_token_ids,
        constraint=world.constraint({"guided_regex": "a{1000}"}),
    )
    world.built.engine.submit(request)
    for _ in range(5):
        world.built.engine.turn(wait=False)
    world.built.engine.abort(99)
    answers = world.run([(asked(seed), sampled(seed)) for seed in range(3)])
    assert gone.reason is FinishReason.CANCELLED
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]


class Broken:
    """A constraint that raises after some tokens."""

    def fill(self, row: Any, bitmask: Any, at: int) -> None:
        if len(row.tokens) - row.start >= 3:
            raise ValueError("planted")
        bitmask[at] = -1


def test_a_grammar_that_breaks_ends_its_own_request_only(world: World) -> None:
    free = (None, sampled(3, max_tokens=40))
    (expected,) = world.run([free])
    broken = Answer()
    request = Request(
        99,
        array("i", world.built.tokenizer.encode("x")),
        sampled(1),
        broken.take,
        0.0,
        constraint=Broken(),
    )
    world.built.engine.submit(request)
    (answer,) = world.run([free])
    assert broken.reason is FinishReason.ERROR
    assert broken.error is not None
    assert len(broken.tokens) == 3
    assert answer.tokens == expected.tokens


def test_output_shown_to_the_matcher_anew_gives_the_same_masks(world: World) -> None:
    """What a preempted sequence relies on: the place in the grammar follows from the tokens alone."""
    (answer,) = world.run([(asked(4), sampled(4))])
    followed = world.constraint(asked(4))
    for end in range(len(answer.tokens)):
        stepwise = world.mask(followed, answer.tokens[:end])
        assert world.mask(world.constraint(asked(4)), answer.tokens[:end]) == stepwise
