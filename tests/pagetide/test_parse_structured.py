"""A grammar is found under each of its names, once, and what is wrong with it is said with its name."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from pagetide.grammar import Grammar, GrammarKind
from pagetide.parse_structured import check_ends, take_grammar
from pagetide.parse_values import InvalidArgumentError
from pagetide.request import SamplingParams

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "é"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"const":"é"}}}'
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "hi"}}
MAX_BYTES = 4096


def take(**values: Any) -> Grammar | None:
    return take_grammar(values, MAX_BYTES)


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, GrammarKind.JSON, SCHEMA_TEXT),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, GrammarKind.JSON, SCHEMA_TEXT),
        ({"structured_outputs": json.dumps({"json": SCHEMA})}, GrammarKind.JSON, SCHEMA_TEXT),
        ({"guided_decoding": {"json": SCHEMA, "backend": "xgrammar"}}, GrammarKind.JSON, SCHEMA_TEXT),
        ({"guided_json": SCHEMA}, GrammarKind.JSON, SCHEMA_TEXT),
        ({"guided_json": json.dumps(SCHEMA)}, GrammarKind.JSON, SCHEMA_TEXT),
        ({"structured_outputs": {"json": True}}, GrammarKind.JSON, "true"),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_OBJECT, '{"type":"object"}'),
        ({"guided_json_object": "true"}, GrammarKind.JSON_OBJECT, '{"type":"object"}'),
        ({"structured_outputs": {"regex": "a+"}}, GrammarKind.REGEX, "a+"),
        ({"guided_regex": "a+"}, GrammarKind.REGEX, "a+"),
        (
            {"structured_outputs": {"choice": ["yes", "no no"]}},
            GrammarKind.CHOICE,
            'root ::= "yes" | "no no"',
        ),
        ({"guided_choice": ['"\n']}, GrammarKind.CHOICE, 'root ::= "\\U00000022\\U0000000a"'),
        ({"structured_outputs": {"grammar": 'root ::= "x"'}}, GrammarKind.GRAMMAR, 'root ::= "x"'),
        ({"guided_grammar": 'root ::= "x"'}, GrammarKind.GRAMMAR, 'root ::= "x"'),
        (
            {"structured_outputs": {"structural_tag": TAG}},
            GrammarKind.STRUCTURAL_TAG,
            json.dumps(TAG, separators=(",", ":")),
        ),
    ],
)
def test_a_grammar_is_taken_under_each_of_its_names(
    values: dict[str, Any], kind: GrammarKind, text: str
) -> None:
    others = {"temperature": 0.5}
    assert take_grammar(given := values | others, MAX_BYTES) == Grammar(kind, text)
    assert given == others


@pytest.mark.parametrize(
    "values",
    [{}, {"guided_json": None}, {"structured_outputs": None}, {"guided_json_object": False}],
)
def test_nothing_asked_for_is_no_grammar(values: dict[str, Any]) -> None:
    assert take(**values) is None


def test_the_order_of_properties_is_kept_and_the_name_does_not_matter() -> None:
    turned = {"type": "object", "properties": {"a": {"const": "é"}, "b": {"type": "integer"}}}
    assert take(guided_json=SCHEMA) != take(guided_json=turned)
    assert take(guided_json=SCHEMA) == take(structured_outputs={"json": SCHEMA})


def test_whitespace_can_be_switched_off() -> None:
    compact = take(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True})
    assert compact is not None
    assert not compact.any_whitespace
    assert compact != take(guided_json=SCHEMA)


def test_vllms_older_structural_tag_is_understood() -> None:
    old = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f>"],
    }
    found = take(structured_outputs={"structural_tag": old})
    assert found is not None
    assert json.loads(found.text)["format"] == {
        "type": "triggered_tags",
        "triggers": ["<f>"],
        "tags": [
            {
                "begin": "<f>",
                "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
                "end": "</f>",
            }
        ],
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"guided_regex": "a", "structured_outputs": {"json": {}}},
            "guided_regex and structured_outputs.json are both given; leave one of them out",
        ),
        (
            {"structured_outputs": {"json": {}, "choice": ["a"]}},
            "structured_outputs.json and structured_outputs.choice are both given; leave one of them out",
        ),
        ({"structured_outputs": {}}, "structured_outputs has none of json, json_object, regex, choice"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs has none of json"),
        ({"structured_outputs": []}, "structured_outputs is []; it must be a JSON object"),
        ({"structured_outputs": "{"}, "structured_outputs is not JSON: "),
        ({"structured_outputs": {"jsn": {}}}, "unknown field 'structured_outputs.jsn'; known: json, "),
        (
            {"guided_decoding": {"json": {}, "backend": "outlines"}},
            "guided_decoding.backend is 'outlines'; it is not served, leave it out",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern is ' '; it is not served, leave it out",
        ),
        ({"guided_json": 3}, "guided_json is 3; it must be a JSON schema: an object, or its text"),
        ({"guided_json": "{]"}, "guided_json is not JSON: "),
        ({"guided_json": {"const": "\ud800"}}, "guided_json is not Unicode text: it has the lone surrogate"),
        ({"guided_json": {"const": float("nan")}}, "guided_json is JSON that can't be read: "),
        ({"guided_json_object": 1}, "guided_json_object is 1; it must be true or false"),
        ({"guided_regex": ""}, "guided_regex is ''; it must be a string that is not empty"),
        ({"guided_regex": ["a"]}, "guided_regex is ['a']; it must be a string that is not empty"),
        ({"guided_regex": "x" * 4097}, "guided_regex has 4097 bytes; it must have at most 4096"),
        ({"guided_choice": []}, "guided_choice is []; it must be a list of at least 1 string"),
        ({"guided_choice": ["a", ""]}, "guided_choice is ['a', '']; it must be a list of at least 1 string"),
        ({"guided_choice": "ab"}, "guided_choice is 'ab'; it must be a list of at least 1 string"),
        ({"guided_grammar": 7}, "guided_grammar is 7; it must be a string that is not empty"),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs.structural_tag is not JSON: ",
        ),
        (
            {"structured_outputs": {"structural_tag": {"structures": [{"begin": "<f>"}]}}},
            "with structures it must have triggers",
        ),
    ],
)
def test_a_wrong_grammar_is_refused_by_its_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        take(**values)
    assert message in str(refused.value)


def test_deeply_nested_schemas_are_refused_or_taken_but_never_break_the_parser() -> None:
    for depth in (50, 300, 900, 5000):
        text = '{"items":' * depth + "{}" + "}" * depth
        with suppress(InvalidArgumentError):
            take_grammar({"guided_json": text}, 10 * len(text))


def test_only_an_end_token_ends_a_grammar() -> None:
    grammar = take(guided_regex="a")
    check_ends(None, SamplingParams(ignore_eos=True))
    check_ends(grammar, SamplingParams())
    with pytest.raises(InvalidArgumentError, match="ignore_eos is true; with guided_regex it must be false"):
        check_ends(grammar, SamplingParams(ignore_eos=True))
