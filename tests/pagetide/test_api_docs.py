"""docs/api.md lists what the code has, no more and no less."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from parse_world import LIMITS, parse, text

from pagetide import parse_sampling, parse_terms, parse_values
from pagetide.answer import ErrorCode
from pagetide.config import Settings
from pagetide.model_io import INPUTS, OUTPUTS, PARAMETERS, RETURNED, Spec
from pagetide.parse_limits import RequestLimits
from pagetide.parse_terms import Terms
from pagetide.parse_values import InvalidArgumentError
from pagetide.request import FinishReason, SamplingParams

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
LIMIT_SETTINGS = {"max_waiting", "max_waiting_tokens", "max_grammar_s"} | (
    {each.name for each in fields(RequestLimits) if each.name.startswith("max_")}
    & {each.name for each in fields(Settings)}
)
DEFAULTS: dict[str, Any] = {"n": 1} | {
    each.name: each.default for kind in (SamplingParams, Terms) for each in fields(kind)
}
CONSTANTS: dict[str, tuple[object, ...]] = {
    "stop": (parse_values.MAX_STOPS, parse_values.MAX_STOP_LENGTH),
    "stop_token_ids": (parse_values.MAX_STOP_TOKENS,),
    "logit_bias": (parse_values.MAX_BIASES, f"{parse_values.MAX_BIAS:g}"),
    "tenant": (parse_terms.MOST_NAME_LENGTH,),
    "cache_salt": (parse_terms.MOST_NAME_LENGTH,),
}


@cache
def table(heading: str) -> dict[str, list[str]]:
    """The rows of the table whose first column is `heading`, by their first cell, without its code marks."""
    found: dict[str, list[str]] = {}
    (block,) = re.findall(rf"^\| {heading} \|.*\n\|[-|]*\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    for line in block.splitlines():
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        assert first.strip("`") not in found, f"{first} stands twice"
        found[first.strip("`")] = others
    return found


def kind(spec: Spec) -> str:
    return f"{spec.data_type} [{spec.dims[0]}]"


def shown(default: Any) -> str:
    """A default as the page writes it."""
    if default in (None, ()):
        return "none"
    if default in ("", b""):
        return '""'
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def parameters() -> list[str]:
    """Every parameter that is served: an unknown one is refused with all names."""
    with pytest.raises(InvalidArgumentError) as caught:
        parse({"zzzzzz": 1})
    return str(caught.value).partition("known: ")[2].split(", ")


def limit(name: str) -> str:
    """What a value that can't be right is told."""
    for wrong in (True, {}, 3):
        try:
            parse(sampling_parameters=text(json.dumps({name: wrong})))
        except InvalidArgumentError as error:
            return str(error).partition("; it must be ")[2].replace(f"to {LIMITS.max_n}", "to `max_n`")
    raise AssertionError(f"{name} takes anything")


def test_every_input_is_listed_with_its_type_and_shape() -> None:
    assert {name: cells[0] for name, cells in table("input").items()} == {
        spec.name: kind(spec) for spec in INPUTS
    }


def test_every_input_that_sets_a_parameter_says_which() -> None:
    told = {name: re.match(r"sets `(\w+)`", cells[-1]) for name, cells in table("input").items()}
    assert {name: match[1] for name, match in told.items() if match} == {
        spec.name: parameter for spec, parameter in PARAMETERS
    }


def test_every_output_is_listed_with_its_type_and_shape() -> None:
    assert {name: cells[0] for name, cells in table("output").items()} == {
        spec.name: kind(spec) for spec in OUTPUTS
    }
    assert {f"return_{name}" for name in RETURNED} <= table("input").keys()


def test_every_parameter_is_listed() -> None:
    assert sorted(table("parameter")) == sorted(parameters())


@pytest.mark.parametrize("name", parameters())
def test_a_parameter_is_listed_with_its_default_and_limit(name: str) -> None:
    default, told, _ = table("parameter")[name]
    assert default == shown(DEFAULTS.get(name))
    assert limit(name) in told
    assert all(str(constant) in told for constant in CONSTANTS.get(name, ()))


def test_the_json_limit_is_listed() -> None:
    assert table("input")["sampling_parameters"][2] == f"{parse_sampling.MAX_JSON_BYTES} bytes"


def test_every_limit_of_the_settings_is_listed_with_its_default() -> None:
    defaults = {each.name: each.default for each in fields(Settings) if each.default is not MISSING}
    assert {name: cells[0] for name, cells in table("setting").items()} == {
        name: shown(defaults[name]) for name in LIMIT_SETTINGS
    }


def test_every_error_and_finish_reason_is_listed() -> None:
    assert table("code").keys() == {code.name for code in ErrorCode}
    assert table("finish reason").keys() == {reason.value for reason in FinishReason}
