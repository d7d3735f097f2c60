"""A conversation is read exactly, or refused with the field, the value and the limit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pagetide.parse import Limits, ParsedRequest, parse_request
from pagetide.parse_values import InvalidArgumentError

LIMITS = Limits(max_prompt_bytes=200, max_model_len=100, vocab_size=500)
CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé 😀"}]


def text(value: str | bytes) -> np.ndarray[Any, Any]:
    return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)


def parse(value: str | bytes, **tensors: np.ndarray[Any, Any]) -> ParsedRequest:
    return parse_request({"messages": text(value)} | tensors, "{}", LIMITS)


def test_messages_replace_the_prompt_and_are_never_repeated_in_the_output() -> None:
    parsed = parse(json.dumps(CONVERSATION))
    assert parsed.messages == tuple(CONVERSATION)
    assert (parsed.prompt, parsed.echo) == ("", "")


def test_fields_beside_role_and_content_reach_the_template() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}
    assert parse(json.dumps([call])).messages == (call,)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "messages is not JSON"),
        ("[", "messages is not JSON"),
        (b'"\xff"', "messages is not UTF-8: byte 0xff at position 1"),
        ("[]", r"messages is \[\]; it must be a JSON list of at least 1 message"),
        ('{"role": "user"}', "it must be a JSON list"),
        ('["hello"]', r"messages\[0\] is 'hello'; it must be an object with a string as its role"),
        ('[{"role": "user"}, {"content": "x"}]', r"messages\[1\] is .*; it must be an object"),
        ('[{"role": 1}]', r"messages\[0\] is .*; it must be an object"),
        (r'[{"role": "user", "content": "\ud800"}]', r"messages is not Unicode text: .* \\ud800"),
        (" " * 201, "messages has 201 bytes; it must have at most 200"),
    ],
)
def test_bad_messages_are_refused(value: str | bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse(value)


def test_a_prompt_beside_messages_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="text_input and messages are both given"):
        parse(json.dumps(CONVERSATION), text_input=text("Hello"))
