"""A conversation instead of a prompt: what the inputs `messages` and `tools` must hold."""

from __future__ import annotations

import json
from typing import Any

from pagetide.parse_sampling import load_json
from pagetide.parse_values import InvalidArgumentError, shown

Messages = tuple[dict[str, Any], ...]
Tools = tuple[dict[str, Any], ...]


def parse_messages(text: bytes) -> Messages:
    """Reads a JSON list of objects with a `role` each; the chat template judges the rest.

    The arguments of tool calls are JSON in a string, as OpenAI's API has them, or an object, which is what
    templates take: strings are read. Raises InvalidArgumentError.
    """
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
        _read_arguments(f"messages[{index}]", message)
    _check_unicode("messages", value)
    return tuple(value)


def parse_tools(text: bytes) -> Tools | None:
    """Reads a JSON list of objects, each a tool as the chat template wants it; None for an empty list.

    Raises InvalidArgumentError.
    """
    value = load_json("tools", text)
    if not isinstance(value, list):
        raise InvalidArgumentError(f"tools is {shown(value)}; it must be a JSON list of tools")
    for index, tool in enumerate(value):
        if not isinstance(tool, dict):
            raise InvalidArgumentError(f"tools[{index}] is {shown(tool)}; it must be an object")
    _check_unicode("tools", value)
    return tuple(value) or None


def _read_arguments(where: str, message: dict[str, Any]) -> None:
    calls = message.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            name = f"{where}.tool_calls[{index}].function.arguments"
            function["arguments"] = load_json(name, function["arguments"] or "{}")


def _check_unicode(name: str, value: list[Any]) -> None:
    """JSON can write half of a surrogate pair, which is no character and which no tokenizer takes."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise InvalidArgumentError(
            f"{name} is not Unicode text: it has the lone surrogate \\u{code:04x}"
        ) from None
    except RecursionError:
        raise InvalidArgumentError(f"{name} is nested too deeply") from None
