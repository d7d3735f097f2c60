"""Sampling parameters as clients of the Triton vLLM backend send them, checked one by one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from pagetide.grammar import PARAMETERS as GRAMMARS
from pagetide.parse_terms import FIELDS as TERMS
from pagetide.parse_values import (
    Convert,
    InvalidArgumentError,
    biases,
    boolean,
    integer,
    real,
    shown,
    strings,
    token_ids,
    token_mask,
    truncation,
    words,
)
from pagetide.request import SamplingParams

MAX_JSON_BYTES = 2**20
_HINT_LENGTH = 64

_INT64 = 2**63


def _seed(field: str, value: Any) -> int | None:
    """-1 asks for a random one, as in vLLM."""
    seed: int = integer(-_INT64, _INT64 - 1)(field, value)
    return None if seed == -1 else seed


_FIELDS: dict[str, Convert] = {
    "max_tokens": integer(1),
    "min_tokens": integer(0),
    "temperature": real("a finite number of at least 0", lambda x: x >= 0),
    "top_k": integer(-1),
    "top_p": real("a number above 0, at most 1", lambda x: 0 < x <= 1),
    "min_p": real("a number from 0 to 1", lambda x: 0 <= x <= 1),
    "presence_penalty": real("a number from -2 to 2", lambda x: -2 <= x <= 2),
    "frequency_penalty": real("a number from -2 to 2", lambda x: -2 <= x <= 2),
    "repetition_penalty": real("a number from 0.001 to 1000", lambda x: 0.001 <= x <= 1000),
    "bad_words": words,
    "seed": _seed,
    "stop": strings,
    "include_stop_str_in_output": boolean,
    "ignore_eos": boolean,
    "logprobs": integer(-1),
    "prompt_logprobs": integer(-1),
    "truncate_prompt_tokens": truncation,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
}

_NOT_SERVED: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "early_stopping": (False,),
    "detokenize": (True,),
    "response_format": (),
    "lora_name": (),
    "logits_processors": ([],),
    "extra_args": ({},),
}
"""Parameters of vLLM that are not served yet, each with the values that ask for nothing."""


def sampling_params(values: Mapping[str, Any], vocab_size: int) -> SamplingParams:
    """`null` stands for the default.

    Raises InvalidArgumentError for an unknown, wrong or unserved parameter.
    """
    fields = _FIELDS | _fields_of(vocab_size)
    given = {name: value for name, value in values.items() if value is not None}
    for name in [name for name in given if name not in fields]:
        _check_asks_for_nothing(name, given.pop(name), fields)
    params = SamplingParams(**{name: fields[name](name, value) for name, value in given.items()})
    if params.min_tokens > params.max_tokens:
        raise InvalidArgumentError(
            f"min_tokens is {params.min_tokens}; it must be at most max_tokens, {params.max_tokens}"
        )
    return params


def _fields_of(vocab_size: int) -> dict[str, Convert]:
    return {
        "stop_token_ids": token_ids(vocab_size),
        "allowed_token_ids": token_mask(vocab_size),
        "logit_bias": biases(vocab_size),
    }


def load_object(source: str, text: str | bytes) -> dict[str, Any]:
    """Raises InvalidArgumentError unless `text` is UTF-8, JSON, an object, and not too large."""
    if len(text) > MAX_JSON_BYTES:
        raise InvalidArgumentError(f"{source} has {len(text)} bytes; at most {MAX_JSON_BYTES} are served")
    value = load_json(source, text)
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{source} is {shown(value)}; it must be a JSON object")
    return value


def load_json(source: str, text: str | bytes) -> Any:
    """Raises InvalidArgumentError unless `text` is UTF-8 and JSON."""
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(not_utf8(source, error)) from None
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"{source} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise InvalidArgumentError(f"{source} is JSON that can't be read: {error}") from None


def not_utf8(field: str, error: UnicodeDecodeError) -> str:
    byte = error.object[error.start]
    return f"{field} is not UTF-8: byte 0x{byte:02x} at position {error.start}"


def _check_asks_for_nothing(name: str, value: object, fields: Mapping[str, Convert]) -> None:
    if name not in _NOT_SERVED:
        raise InvalidArgumentError(f"unknown sampling parameter {shown(name)}{_hint(name, fields)}")
    neutral = _NOT_SERVED[name]
    if any(_same(value, each) for each in neutral):
        return
    served = f"only {shown(neutral[0])} is served" if neutral else "it is not served yet, leave it out"
    raise InvalidArgumentError(f"{name} is {shown(value)}; {served}")


def _same(value: object, neutral: object) -> bool:
    """Equal, or the same number or boolean written as a string; `true` is not 1."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral or (isinstance(value, str) and value.lower() == json.dumps(neutral))
    if isinstance(value, str) and isinstance(neutral, int):
        try:
            return float(value) == neutral
        except ValueError:
            return False
    return value == neutral


def _hint(name: str, fields: Mapping[str, Convert]) -> str:
    known = sorted((*fields, *TERMS, *GRAMMARS, "n"))
    closest = difflib.get_close_matches(name[:_HINT_LENGTH], known, n=1)
    return f"; did you mean {closest[0]!r}?" if closest else f"; known: {', '.join(known)}"
