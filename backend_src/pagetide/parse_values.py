"""One value of a request at a time: converted, or refused with the field, the value and the limit."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from pagetide.logit_edits import TokenMask

MAX_STOP_TOKENS = 256
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
_SHOWN = 80

Convert = Callable[[str, Any], Any]
"""Turns the value of the named field into what SamplingParams holds; raises InvalidArgumentError."""


class InvalidArgumentError(ValueError):
    """The client asked for something that can't be served; the message names field, value and limit."""


def shown(value: object) -> str:
    """`value` as an error message shows it: short, printable, booleans and null as JSON writes them."""
    if isinstance(value, (bool, type(None))):
        return json.dumps(value)
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def refuse(field: str, value: object, limit: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{field} is {shown(value)}; it must be {limit}")


def integer(least: int, most: int | None = None) -> Convert:
    """Whole numbers; `"16"` and `16.0` count as 16, `true` does not count as 1."""
    limit = f"a whole number of at least {least}" if most is None else f"a whole number, {least} to {most}"

    def convert(field: str, value: Any) -> int:
        number = _whole(value)
        if number is None or number < least or (most is not None and number > most):
            raise refuse(field, value, limit)
        return number

    return convert


def truncation(field: str, value: Any) -> int:
    """How many tokens to keep; -1: as many as there is room for."""
    number = _whole(value)
    if number is None or number < -1 or number == 0:
        raise refuse(field, value, "a whole number of at least 1, or -1")
    return number


def real(limit: str, accepts: Callable[[float], bool]) -> Convert:
    """Finite numbers that `accepts`; `"0.5"` counts as 0.5, `true` does not count as 1."""

    def convert(field: str, value: Any) -> float:
        number = _number(value)
        if number is None or not math.isfinite(number) or not accepts(number):
            raise refuse(field, value, limit)
        return number

    return convert


def boolean(field: str, value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise refuse(field, value, "true or false")
    return value


def strings(field: str, value: Any) -> tuple[str, ...]:
    """One string or a list of them. Raises for an empty one, and for more or longer than is served."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
        raise refuse(field, value, "a string or a list of strings, none of them empty")
    if len(values) > MAX_STOPS:
        raise InvalidArgumentError(f"{field} has {len(values)} strings; at most {MAX_STOPS} are served")
    longest = max(map(len, values), default=0)
    if longest > MAX_STOP_LENGTH:
        raise InvalidArgumentError(
            f"{field} has a string of {longest} characters; at most {MAX_STOP_LENGTH} are served"
        )
    if not all(map(is_unicode, values)):
        raise refuse(field, value, "Unicode text, which has no lone surrogates")
    return tuple(values)


def words(field: str, value: Any) -> tuple[str, ...]:
    """As `strings`, but empty ones ask for nothing: LiteLLM always sends `[""]`."""
    values = [value] if isinstance(value, str) else value
    kept = [each for each in values if each != ""] if isinstance(values, list) else values
    return strings(field, kept)


def is_unicode(text: str) -> bool:
    """False for lone surrogates, which JSON can write and no encoding can."""
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def token_ids(vocab_size: int, most: int = MAX_STOP_TOKENS) -> Convert:
    one = integer(0, vocab_size - 1)

    def convert(field: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise refuse(field, value, "a list of token ids")
        if len(value) > most:
            raise InvalidArgumentError(f"{field} has {len(value)} token ids; at most {most} are served")
        return tuple(one(f"{field}[{index}]", each) for index, each in enumerate(value))

    return convert


def token_mask(vocab_size: int) -> Convert:
    """The tokens that a list names; at least one."""
    ids = token_ids(vocab_size, most=vocab_size)

    def convert(field: str, value: Any) -> TokenMask:
        if value == []:
            raise refuse(field, value, "a list of at least one token id")
        return TokenMask.of(ids(field, value))

    return convert


def biases(vocab_size: int) -> Convert:
    """An object from token ids to numbers; those beyond 100 either way count as 100, as in OpenAI's API."""
    token = integer(0, vocab_size - 1)
    number = real("a finite number", lambda x: True)

    def convert(field: str, value: Any) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict):
            raise refuse(field, value, "an object from token ids to numbers")
        if len(value) > MAX_BIASES:
            raise InvalidArgumentError(f"{field} has {len(value)} tokens; at most {MAX_BIASES} are served")
        pairs = {
            token(f"a token of {field}", key): number(f"{field}[{key}]", bias) for key, bias in value.items()
        }
        return tuple((key, min(max(bias, -MAX_BIAS), MAX_BIAS)) for key, bias in pairs.items())

    return convert


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,20}\s*", value, re.ASCII):
        return int(value)
    return None


def _number(value: Any) -> float | None:
    """`value` as a float, NaN and infinity included; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
