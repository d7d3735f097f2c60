"""A conversation is read exactly, or refused with the field, the value and the limit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import parse_world
import pytest
from parse_world import text

from pagetide.parse import ParsedRequest
from pagetide.parse_prompt import Conversation
from pagetide.parse_values import InvalidArgumentError

LIMITS = replace(parse_world.LIMITS, max_prompt_bytes=200)
CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé 😀"}]


def parse(value: str | bytes, **tensors: np.ndarray[Any, Any]) -> ParsedRequest:
    return parse_world.parse(limits=LIMITS, messages=text(value), **tensors)


def conversation(value: str | bytes, **tensors: np.ndarray[Any, Any]) -> Conversation:
    prompt = parse(value, **tensors).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def test_messages_replace_the_prompt_and_are_never_repeated_in_the_output() -> None:
    parsed = parse(json.dumps(CONVERSATION))
    assert parsed.prompt == Conversation(tuple(CONVERSATION))
    assert (parsed.source, parsed.echo) == ("messages", "")


def test_fields_beside_role_and_content_reach_the_template() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}
    assert conversation(json.dumps([call])).messages == (call,)


def call_of(arguments: object) -> list[dict[str, Any]]:
    function = {"name": "add", "arguments": arguments}
    calls = [{"id": "1", "type": "function", "function": function}]
    return [{"role": "assistant", "content": None, "tool_calls": calls}]


@pytest.mark.parametrize(("written", "read"), [('{"a": 1}', {"a": 1}), ("", {}), ({"a": 1}, {"a": 1})])
def test_the_arguments_of_tool_calls_reach_the_template_as_objects(written: object, read: object) -> None:
    """OpenAI's API writes them as a string; templates take objects."""
    assert conversation(json.dumps(call_of(written))).messages == tuple(call_of(read))


def test_tools_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    assert conversation(json.dumps(CONVERSATION), tools=text(json.dumps(tools))).tools == tuple(tools)
    assert conversation(json.dumps(CONVERSATION), tools=text("[]")).tools is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "tools is not JSON"),
        ("{}", r"tools is {}; it must be a JSON list of tools"),
        ("[3]", r"tools\[0\] is 3; it must be an object"),
        (r'[{"a": "\udfff"}]', r"tools is not Unicode text: .* \\udfff"),
        ("[" + " " * 200 + "]", "tools has 202 bytes; it must have at most 200"),
    ],
)
def test_bad_tools_are_refused(value: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse(json.dumps(CONVERSATION), tools=text(value))


def test_tools_without_messages_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="tools is given with text_input; it goes with messages"):
        parse_world.parse(text_input=text("Hello"), tools=text("[]"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "messages is empty; it must hold at least 1 byte"),
        ("[", "messages is not JSON"),
        (b'"\xff"', "messages is not UTF-8: byte 0xff at position 1"),
        ("[]", r"messages is \[\]; it must be a JSON list of at least 1 message"),
        ('{"role": "user"}', "it must be a JSON list"),
        ('["hello"]', r"messages\[0\] is 'hello'; it must be an object with a string as its role"),
        ('[{"role": "user"}, {"content": "x"}]', r"messages\[1\] is .*; it must be an object"),
        ('[{"role": 1}]', r"messages\[0\] is .*; it must be an object"),
        (r'[{"role": "user", "content": "\ud800"}]', r"messages is not Unicode text: .* \\ud800"),
        (json.dumps(call_of("{")), r"messages\[0\].tool_calls\[0\].function.arguments is not JSON"),
        (" " * 201, "messages has 201 bytes; it must have at most 200"),
    ],
)
def test_bad_messages_are_refused(value: str | bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse(value)


def test_a_prompt_beside_messages_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="text_input and messages are both given"):
        parse(json.dumps(CONVERSATION), text_input=text("Hello"))
