"""Random JSON schemas: nested, satisfiable, and with outputs of bounded length."""

from __future__ import annotations

import random
from typing import Any

_WORDS = ("name", "age", "größe", "tags", "a b", "x", "日本", 'q"t', "is_ok", "id", "back\\slash", "🙂")
_MAX_DEPTH = 3


def random_schema(seed: int) -> dict[str, Any]:
    """An object or array at the top, as clients ask for; the same for the same seed."""
    rng = random.Random(seed)
    return (_object if rng.random() < 0.8 else _array)(rng, 0)


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    leaves = [_string, _integer, _number, _enum, _constant, _boolean]
    nested = [_object, _object, _array, _either] if depth < _MAX_DEPTH else []
    return rng.choice([*leaves, *nested])(rng, depth)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_WORDS, rng.randint(1, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _any(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    if rng.random() < 0.5:
        schema["additionalProperties"] = False
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": _any(rng, depth + 1),
        "minItems": least,
        "maxItems": least + rng.randint(0, 2),
    }


def _either(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(rng, depth + 1) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.3:
        return {"type": "string", "pattern": rng.choice(("^[a-z]{2,5}$", "^\\d{3}-\\d{2}$", "^(yes|no)$"))}
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    if rng.random() < 0.7:
        schema["minimum"] = rng.randint(-1000, 1000)
        schema["maximum"] = schema["minimum"] + rng.randint(0, 5000)
    return schema


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "number"}
    if rng.random() < 0.5:
        schema["minimum"] = rng.randint(-40, 40) / 4
        schema["maximum"] = schema["minimum"] + rng.randint(1, 40) / 4
    return schema


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": rng.sample([*_WORDS, 1, -2.5, True, None, "line\nbreak", ""], rng.randint(1, 4))}


def _constant(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice([*_WORDS, 7, None, [1, "b"], {"k": False}])}


def _boolean(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(("boolean", "null"))}
