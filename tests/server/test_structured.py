"""Structured outputs through the real server: as a client asks for them, and as it is told what is wrong."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from triton_world import Triton

pytestmark = pytest.mark.server

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["person", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
PROMPT = "Describe Ada, 36, a person, in JSON:\n"
SEEDED = {"max_tokens": 200, "temperature": 1.0, "seed": 5}


def outputs(triton: Triton, sampling: dict[str, Any], **options: Any) -> tuple[str, str]:
    """The whole text, and the finish reason."""
    responses = triton.start(PROMPT, sampling=sampling, return_finish_reason=True, **options).all()
    assert not any(response.error for response in responses), responses
    return "".join(response.text for response in responses), responses[-1].outputs["finish_reason"]


def test_json_by_a_schema_streamed_and_whole(idle: Triton) -> None:
    sampling = SEEDED | {"structured_outputs": {"json": PERSON}}
    streamed, reason = outputs(idle, sampling)
    assert reason == "stop"
    jsonschema.validate(json.loads(streamed), PERSON)
    whole, _ = outputs(idle, sampling, stream=False, exclude_input_in_output=True)
    assert whole == streamed


@pytest.mark.parametrize(
    "parameters",
    [
        {"guided_json": json.dumps(PERSON)},
        {"structured_outputs": json.dumps({"json": PERSON})},
        {"guided_decoding": json.dumps({"json": PERSON})},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_a_schema_as_a_request_parameter_is_text(triton: Triton, parameters: dict[str, str]) -> None:
    """Triton takes only scalars there; numbers come as they are."""
    text = triton.text(PROMPT, parameters=parameters | {"max_tokens": 200, "seed": 5})
    jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize(
    ("structured", "allowed"),
    [
        ({"regex": "[0-9]{3}"}, {f"{number:03}" for number in range(1000)}),
        ({"choice": ["cat", "dog"]}, {"cat", "dog"}),
        ({"grammar": 'root ::= "x" | "y"'}, {"x", "y"}),
        (
            {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "ok"}}},
            {"ok"},
        ),
    ],
    ids=["regex", "choice", "grammar", "structural_tag"],
)
def test_every_kind_of_grammar(triton: Triton, structured: dict[str, Any], allowed: set[str]) -> None:
    assert outputs(triton, {"max_tokens": 20, "structured_outputs": structured})[0] in allowed


def test_stop_strings_end_an_output_inside_its_grammar(triton: Triton) -> None:
    sampling = {"structured_outputs": {"regex": "a{5}b{5}"}, "stop": ["bb"], "max_tokens": 40}
    assert outputs(triton, sampling) == ("aaaaa", "stop")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "schema": (
        {"guided_json": {"type": "banana"}},
        'guided_json can\'t be compiled: Unsupported type "banana"',
    ),
    "schema that would be passed over": (
        {"guided_json": {"type": "object", "properties": {"a": {"not": {}}}}},
        "'guided_json.properties.a' has not; in a schema it is not served, leave it out",
    ),
    "regex": ({"guided_regex": "(a"}, "guided_regex can't be compiled: "),
    "EBNF": ({"guided_grammar": "root ::= nothing"}, "guided_grammar can't be compiled: "),
    "structural tag": (
        {"structured_outputs": {"structural_tag": {"type": "structural_tag"}}},
        "structured_outputs.structural_tag can't be compiled: ",
    ),
    "size": ({"guided_regex": "a" * 70_000}, "guided_regex has 70000 bytes; it must have at most 65536"),
    "two": ({"guided_regex": "a", "guided_choice": ["b"]}, "are both given; leave one of them out"),
    "end": (
        {"guided_regex": "a", "ignore_eos": True},
        "ignore_eos is true; with guided_regex it must be false",
    ),
}


@pytest.mark.parametrize(("sampling", "message"), BAD.values(), ids=BAD)
def test_a_bad_grammar_is_refused_with_its_reason(
    triton: Triton, sampling: dict[str, Any], message: str
) -> None:
    assert message in triton.error(sampling=sampling)


def test_streams_go_on_untouched_beside_grammars_that_are_refused(idle: Triton) -> None:
    requests = [
        {"prompt": f"Tell a story about {each}.", "sampling": {"temperature": 0, "max_tokens": 40}}
        for each in ("cats", "dogs", "owls", "bees")
    ]
    undisturbed = idle.together(requests)
    with ThreadPoolExecutor(1) as pool:
        disturbed = pool.submit(idle.together, requests)
        for sampling, message in BAD.values():
            assert message in idle.error(sampling=sampling)
    for before, during in zip(undisturbed, disturbed.result(), strict=True):
        assert "".join(each.text for each in during) == "".join(each.text for each in before)


def test_compiles_hits_and_refusals_are_counted(idle: Triton) -> None:
    def counts() -> tuple[float, float, float]:
        shown = idle.metrics()
        return (
            shown["pagetide:grammar_compile_seconds_count"],
            shown["pagetide:grammar_cache_hits_total"],
            shown["pagetide:grammars_refused_total"],
        )

    def settled() -> tuple[float, float, float]:
        """Counts are published twice a second: with none left to come, two looks a second apart agree."""
        before = counts()
        time.sleep(1)
        while before != (now := counts()):
            before = now
            time.sleep(1)
        return before

    compiled, hits, refused = settled()
    for _ in range(3):
        assert idle.text(PROMPT, sampling={"guided_regex": "never seen before", "max_tokens": 20})
    idle.error(sampling={"guided_regex": "(never"})
    idle.wait_for_metrics(
        {
            "pagetide:grammar_compile_seconds_count": compiled + 2,
            "pagetide:grammar_cache_hits_total": hits + 2,
            "pagetide:grammars_refused_total": refused + 1,
        }
    )
