"""Refuses schemas that say what the grammar compiler would pass over without a word.

An output that follows the grammar must be valid by the schema. What xgrammar can't express it mostly
refuses or warns of; the rest, found by trying (tests/pagetide/test_json_schema.py), is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pagetide.parse_values import InvalidArgumentError, shown

_NEVER_HELD = (
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "$dynamicRef",
    "$recursiveRef",
)
_DECIDING = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""Where one of them stands, what stands beside it counts for nothing."""

_NEEDS_TYPE = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
)
"""Counts only beside a `type`."""

_APART = (
    ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    ("format", "pattern", "minLength", "maxLength"),
    ("pattern", "minLength", "maxLength"),
    ("patternProperties", "properties", "additionalProperties", "minProperties"),
    ("minProperties", "additionalProperties"),
)
"""Not all of these count where the first stands beside one of the others; one that is false does no harm."""

_LIMITS = (
    *_NEEDS_TYPE,
    *("items", "prefixItems", "minItems", "maxItems"),
    *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "unevaluatedItems", "unevaluatedProperties"),
)
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}

_ONE = ("items", "additionalProperties", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Where schemas stand within a schema."""


def check_schema(source: str, schema: Any) -> None:
    """Raises InvalidArgumentError that names the place and the keyword."""
    pending = [(source, schema)]
    while pending:
        path, each = pending.pop()
        if isinstance(each, dict):
            _check(path, each)
            pending += _within(path, each)


def check_schemas_within(source: str, tag: Any) -> None:
    """The same for the schemas that a structural tag holds."""
    pending = [(source, tag)]
    while pending:
        path, each = pending.pop()
        if isinstance(each, dict):
            if "json_schema" in each:
                check_schema(f"{path}.json_schema", each["json_schema"])
            pending += ((f"{path}.{key}", value) for key, value in each.items() if key != "json_schema")
        elif isinstance(each, list):
            pending += ((f"{path}[{index}]", value) for index, value in enumerate(each))


def _within(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _ONE:
        yield f"{path}.{key}", schema.get(key)
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            yield from ((f"{path}.{key}[{index}]", each) for index, each in enumerate(schema[key]))
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            yield from ((f"{path}.{key}.{name}", each) for name, each in schema[key].items())


def _check(path: str, schema: dict[str, Any]) -> None:
    for key in _NEVER_HELD:
        if key in schema:
            raise _refuse(path, key, "it is not served, leave it out")
    for key in ("uniqueItems", "unevaluatedItems", "unevaluatedProperties"):
        if schema.get(key):
            raise _refuse(path, key, "only false is served")
    _check_required(path, schema)
    for key, *others in _APART:
        if key in schema and any(schema.get(other, False) is not False for other in others):
            raise _refuse(path, key, f"it is not served beside {' or '.join(others)}")
    if "multipleOf" in schema and schema.get("type") != "integer":
        raise _refuse(path, "multipleOf", "it is served for the type integer only")
    deciding = [key for key in _DECIDING if key in schema]
    if deciding:
        _check_alone(path, schema, deciding)
    elif "type" not in schema:
        for key in _NEEDS_TYPE:
            if key in schema:
                raise _refuse(path, key, "it needs a type beside it")


def _check_required(path: str, schema: dict[str, Any]) -> None:
    required, properties = schema.get("required"), schema.get("properties")
    if isinstance(required, list):
        declared = properties if isinstance(properties, dict) else {}
        for name in required:
            if isinstance(name, str) and name not in declared:
                raise _refuse(path, f"required {shown(name)}", "it must be among the properties")


def _check_alone(path: str, schema: dict[str, Any], deciding: list[str]) -> None:
    beside = [*deciding[1:], *(key for key in _LIMITS if key in schema)]
    if "type" in schema and not _implies_type(schema, deciding[0]):
        beside.append("type")
    if beside:
        raise _refuse(path, beside[0], f"it is not served beside {deciding[0]}")


def _implies_type(schema: dict[str, Any], key: str) -> bool:
    """Whether everything that `key` lets through has the schema's type already."""
    wanted = _names(schema["type"])
    if key in ("const", "enum"):
        values = schema[key] if key == "enum" and isinstance(schema[key], list) else [schema.get("const")]
        return all(any(_is_a(value, name) for name in wanted) for value in values)
    options = schema[key] if isinstance(schema[key], list) else [None]
    return all(
        isinstance(each, dict) and "type" in each and _names(each["type"]) <= wanted for each in options
    )


def _names(kind: Any) -> set[str]:
    return {str(each) for each in kind} if isinstance(kind, list) else {str(kind)}


def _is_a(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(name, ()))


def _refuse(path: str, key: str, limit: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{shown(path)} has {key}; in a schema {limit}")
