"""A conversation instead of a prompt: what the `messages` input must hold."""

from __future__ import annotations

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
    return tuple(value)
