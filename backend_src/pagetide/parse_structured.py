"""The grammar among a request's sampling parameters, under vLLM's names, the older ones too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pagetide.grammar import FLAT, OBJECTS, Grammar, GrammarKind
from pagetide.json_schema import check_schema, check_schemas_within
from pagetide.parse_sampling import load_json
from pagetide.parse_values import InvalidArgumentError, boolean, refuse, shown
from pagetide.request import SamplingParams

_ANY_WHITESPACE = "disable_any_whitespace"
_NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "backend": ("auto", "xgrammar"),
    "whitespace_pattern": (),
    "disable_fallback": (False, True),
    "disable_additional_properties": (False, True),
}
"""Fields of vLLM's objects that change nothing here, each with the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class _Asked:
    source: str
    kind: GrammarKind
    value: Any
    any_whitespace: bool = True


def take_grammar(values: dict[str, Any], max_bytes: int) -> Grammar | None:
    """Takes the grammar out of `values`; null stands for none.

    Raises InvalidArgumentError for two of them, a wrong one, and one of more than `max_bytes`.
    """
    asked = [*_take_flat(values), *(each for name in OBJECTS for each in _take_object(name, values))]
    if len(asked) > 1:
        raise InvalidArgumentError(
            f"{asked[0].source} and {asked[1].source} are both given; leave one of them out"
        )
    return _grammar(asked[0], max_bytes) if asked else None


def check_ends(grammar: Grammar | None, params: SamplingParams) -> None:
    """Raises InvalidArgumentError where the two say different things about the end."""
    if grammar is not None and params.ignore_eos:
        raise InvalidArgumentError(
            f"ignore_eos is true; with {grammar.source} it must be false, as nothing but an end token "
            "can follow a finished output"
        )


def _take_flat(values: dict[str, Any]) -> Iterator[_Asked]:
    for name, kind in FLAT.items():
        value = values.pop(name, None)
        if _asks(kind, name, value):
            yield _Asked(name, kind, value)


def _take_object(name: str, values: dict[str, Any]) -> list[_Asked]:
    value = values.pop(name, None)
    if value is None:
        return []
    fields = load_json(name, value) if isinstance(value, str) else value
    if not isinstance(fields, dict):
        raise refuse(name, value, "a JSON object")
    given = {field: each for field, each in fields.items() if each is not None}
    compact = boolean(f"{name}.{_ANY_WHITESPACE}", given.pop(_ANY_WHITESPACE, False))
    kinds = {kind.value: kind for kind in GrammarKind}
    for field in given.keys() - kinds.keys():
        _check_changes_nothing(f"{name}.{field}", field, given.pop(field))
    asked = [
        _Asked(f"{name}.{field}", kinds[field], each, not compact)
        for field, each in given.items()
        if _asks(kinds[field], f"{name}.{field}", each)
    ]
    if not asked:
        raise InvalidArgumentError(f"{name} has none of {', '.join(kinds)}; it must have one of them")
    return asked


def _asks(kind: GrammarKind, source: str, value: Any) -> bool:
    if kind is GrammarKind.JSON_OBJECT and value is not None:
        return boolean(source, value)
    return value is not None


def _check_changes_nothing(source: str, field: str, value: object) -> None:
    if field not in _NOT_SERVED:
        kinds = ", ".join(kind.value for kind in GrammarKind)
        raise InvalidArgumentError(f"unknown field {shown(source)}; known: {kinds}, {_ANY_WHITESPACE}")
    if value not in _NOT_SERVED[field]:
        raise InvalidArgumentError(f"{source} is {shown(value)}; it is not served, leave it out")


def _grammar(asked: _Asked, max_bytes: int) -> Grammar:
    text = _TEXTS[asked.kind](asked.source, asked.value)
    size = len(_utf8(asked.source, text))
    if size > max_bytes:
        raise InvalidArgumentError(f"{asked.source} has {size} bytes; it must have at most {max_bytes}")
    return Grammar(asked.kind, text, asked.any_whitespace, asked.source)


def _utf8(source: str, text: str) -> bytes:
    """JSON can write half of a surrogate pair, which is no character."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise InvalidArgumentError(
            f"{source} is not Unicode text: it has the lone surrogate \\u{code:04x}"
        ) from None


def _schema(source: str, value: Any) -> str:
    schema = load_json(source, value) if isinstance(value, str) else value
    if not isinstance(schema, (dict, bool)):
        raise refuse(source, value, "a JSON schema: an object, or its text")
    check_schema(source, schema)
    return _compact(source, schema)


def _object(source: str, value: Any) -> str:
    return '{"type":"object"}'


def _text(source: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise refuse(source, value, "a string that is not empty")
    return value


def _choice(source: str, value: Any) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise refuse(source, value, "a list of at least 1 string, none of them empty")
    return "root ::= " + " | ".join(map(_quoted, value))


def _quoted(text: str) -> str:
    """A literal of EBNF; what could end or change it is written as a number."""
    plain = (c if c.isalnum() or c == " " else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(plain)}"'


def _structural_tag(source: str, value: Any) -> str:
    tag = load_json(source, value) if isinstance(value, str) else value
    if not isinstance(tag, dict):
        raise refuse(source, value, "an object, or its JSON text")
    if "structures" in tag:
        tag = _triggered_tags(source, tag)
    check_schemas_within(source, tag)
    return _compact(source, tag)


def _triggered_tags(source: str, tag: dict[str, Any]) -> dict[str, Any]:
    """vLLM's older form: `structures` of `begin`, `schema` and `end`, started by `triggers`."""
    try:
        tags = [
            {
                "begin": each["begin"],
                "content": {"type": "json_schema", "json_schema": each["schema"]},
                "end": each["end"],
            }
            for each in tag["structures"]
        ]
        triggered = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    except (KeyError, TypeError):
        raise InvalidArgumentError(
            f"{source} is {shown(tag)}; with structures it must have triggers, and each of the structures "
            "begin, schema and end"
        ) from None
    return {"type": "structural_tag", "format": triggered}


def _compact(source: str, value: Any) -> str:
    """The order of keys is kept: properties come out in it."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (RecursionError, ValueError) as error:
        raise InvalidArgumentError(f"{source} is JSON that can't be read: {error}") from None


_TEXTS: dict[GrammarKind, Callable[[str, Any], str]] = {
    GrammarKind.JSON: _schema,
    GrammarKind.JSON_OBJECT: _object,
    GrammarKind.REGEX: _text,
    GrammarKind.CHOICE: _choice,
    GrammarKind.GRAMMAR: _text,
    GrammarKind.STRUCTURAL_TAG: _structural_tag,
}
