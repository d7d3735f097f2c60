"""What a schema may say: all that is taken is held, all that would be passed over is refused by its place."""

from __future__ import annotations

from typing import Any

import pytest

from pagetide.json_schema import check_schema, check_schemas_within
from pagetide.parse_values import InvalidArgumentError

INTEGER = {"type": "integer"}
A_AND_B = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"title": "t", "description": "d", "default": 3, "x-mine": 1, "$schema": "s"},
        {"type": "integer", "minimum": 1, "exclusiveMaximum": 5},
        {"type": "integer", "multipleOf": 3},
        {"type": "string", "minLength": 1, "maxLength": 5},
        {"type": "string", "pattern": "^a"},
        {"type": "string", "format": "date"},
        {"type": ["integer", "null"], "minimum": 5},
        {"type": "string", "enum": ["a", "b"], "title": "t"},
        {"type": "number", "enum": [1, 2.5]},
        {"type": "integer", "const": 3},
        {"type": "integer", "anyOf": [{"type": "integer", "minimum": 5}, {"const": 1, "type": "integer"}]},
        {"$ref": "#/$defs/n", "$defs": {"n": INTEGER}, "description": "d"},
        {"type": "array", "items": INTEGER, "minItems": 1, "uniqueItems": False},
        {"type": "array", "prefixItems": [INTEGER], "items": False},
        A_AND_B | {"required": ["a"], "additionalProperties": False},
        {"type": "object", "additionalProperties": INTEGER},
        {"type": "object", "patternProperties": {"^a": INTEGER}},
        {"type": "object", "properties": {"not": INTEGER, "if": {"enum": [{"not": 1}]}}},
    ],
)
def test_a_schema_that_the_compiler_holds_is_taken(schema: Any) -> None:
    check_schema("s", schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": INTEGER}, "'s' has not; in a schema it is not served, leave it out"),
        (A_AND_B | {"if": {"required": ["a"]}, "then": {"required": ["b"]}}, "'s' has if"),
        (A_AND_B | {"dependentRequired": {"a": ["b"]}}, "'s' has dependentRequired"),
        (A_AND_B | {"dependentSchemas": {"a": {}}}, "'s' has dependentSchemas"),
        ({"type": "array", "contains": INTEGER}, "'s' has contains"),
        ({"type": "array", "items": INTEGER, "uniqueItems": True}, "'s' has uniqueItems; in a schema only"),
        ({"type": "object", "unevaluatedProperties": INTEGER}, "'s' has unevaluatedProperties"),
        (
            {"type": "integer", "minimum": 3, "anyOf": [{}, {}]},
            "'s' has minimum",
        ),
        (
            {"anyOf": [INTEGER], "oneOf": [INTEGER]},
            "'s' has oneOf; in a schema it is not served beside",
        ),
        ({"$ref": "#/$defs/n", "minimum": 5}, "'s' has minimum; in a schema it is not served beside $ref"),
        ({"enum": [1, 5], "minimum": 3}, "'s' has minimum; in a schema it is not served beside enum"),
        ({"type": "integer", "enum": [1, "a"]}, "'s' has type; in a schema it is not served beside enum"),
        ({"type": "integer", "const": True}, "'s' has type; in a schema it is not served beside const"),
        ({"type": "object", "anyOf": [{"required": []}]}, "'s' has type"),
        ({"minimum": 5}, "'s' has minimum; in a schema it needs a type beside it"),
        ({"pattern": "a"}, "'s' has pattern; in a schema it needs a type beside it"),
        ({"type": "number", "multipleOf": 0.5}, "'s' has multipleOf; in a schema it is served for the type"),
        ({"type": "integer", "multipleOf": 2, "minimum": 0}, "'s' has multipleOf"),
        ({"type": "string", "pattern": "a", "minLength": 2}, "'s' has pattern"),
        ({"type": "string", "format": "date", "maxLength": 2}, "'s' has format"),
        (A_AND_B | {"required": ["z"]}, "'s' has required 'z'; in a schema it must be among the properties"),
        ({"type": "object", "required": ["z"]}, "'s' has required 'z'"),
        (A_AND_B | {"patternProperties": {"^a": INTEGER}}, "'s' has patternProperties"),
        ({"type": "object", "additionalProperties": True, "minProperties": 2}, "'s' has minProperties"),
        ({"type": "array", "items": {"anyOf": [{"properties": {"p": {"not": {}}}}]}}, "p' has not"),
        ({"$defs": {"n": {"not": {}}}}, "'s.$defs.n' has not"),
        ({"prefixItems": [{}, {"not": {}}]}, "'s.prefixItems[1]' has not"),
    ],
)
def test_a_schema_that_the_compiler_would_pass_over_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        check_schema("s", schema)
    assert message in str(refused.value)


def test_the_schemas_of_a_structural_tag_are_looked_at() -> None:
    tag = {"format": {"tags": [{"content": {"json_schema": {"not": {}}}}]}}
    with pytest.raises(InvalidArgumentError, match=r"t\.format\.tags\[0\]\.content\.json_schema' has not"):
        check_schemas_within("t", tag)
    check_schemas_within("t", {"format": {"value": "x", "not": 3}})


@pytest.mark.parametrize(
    "schema", [{"properties": 3}, {"anyOf": "x"}, {"required": 3}, {"enum": 3}, {"type": []}]
)
def test_a_schema_that_is_no_schema_is_left_to_the_compiler(schema: Any) -> None:
    check_schema("s", schema)
