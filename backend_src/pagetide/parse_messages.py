"""A conversation instead of a prompt: what the `messages` input must hold."""

from __future__ import annotations

import json
from typing import Any

from pagetide.parse_sampling import load_json
from pagetide.parse_values import InvalidArgumentError, shown

Messages = tuple[dict[str, Any], ...]


def parse_messages(text: bytes, max_bytes: int) -> Messages:
    """Reads a JSON list of objects with a `role` each; the chat template judges the rest.

    Raises InvalidArgumentError.
    """
    if len(text) > max_bytes:
        raise InvalidArgumentError(f"messages has {len(text)} bytes; it must have at most {max_bytes}")
    value = load_json("messages", text)
    if not isinstance(value, list) or not value:
        raise InvalidArgumentError(
            f"messages is {shown(value)}; it must be a JSON list of at least 1 message"
        )
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidArgumentError(
                f"messages[{index}] is {shown(message)}; it must be an object with a string as its role"
            )
    _check_unicode(value)
    return tuple(value)


def _check_unicode(messages: list[Any]) -> None:
    """JSON can write half of a surrogate pair, which is no character and which no tokenizer takes."""
    try:
        json.dumps(messages, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise InvalidArgumentError(
            f"messages is not Unicode text: it has the lone surrogate \\u{code:04x}"
        ) from None
