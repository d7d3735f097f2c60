"""Inputs of other servers' clients mean what they mean there, and wrong ones are refused."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from parse_world import number, parse, text

from pagetide.model_io import PARAMETERS, Spec
from pagetide.parse_values import InvalidArgumentError
from pagetide.request import SamplingParams


def ids(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int32)


def test_parameters_come_as_inputs_of_their_own() -> None:
    parsed = parse(
        max_tokens=number(7),
        min_length=number(2),
        temperature=number(0.8, np.float32),
        top_k=number(40),
        top_p=number(0.9, np.float32),
        random_seed=number(3, np.uint64),
        stop_words=text("a", "b"),
        stop_token_ids=ids(4, 5),
        bad_words=text(""),
    )
    assert parsed.params == SamplingParams(
        max_tokens=7,
        min_tokens=2,
        temperature=0.8,
        top_k=40,
        top_p=0.9,
        seed=3,
        stop=("a", "b"),
        stop_token_ids=(4, 5),
    )


def test_a_float32_counts_as_the_number_that_was_written() -> None:
    for value in (0.1, 0.7, 1e-5, 1.0):
        assert parse(temperature=number(value, np.float32)).params.temperature == value


def test_an_input_may_have_any_shape_of_one_element() -> None:
    shaped = parse(text_input=text("Hi").reshape(1, 1), max_tokens=number(7).reshape(1, 1, 1))
    assert (shaped.prompt, shaped.params.max_tokens) == ("Hi", 7)
    assert parse(stop=text("a", "b").reshape(1, 2)).params.stop == ("a", "b")
    assert parse(input_ids=ids(1, 2).reshape(1, 2)).prompt == array("i", [1, 2])


def test_empty_strings_in_a_list_ask_for_nothing() -> None:
    assert parse(stop_words=text(""), bad_words=text("", "")).params == SamplingParams()
    assert parse(stop_words=text("", "END")).params.stop == ("END",)


def test_an_input_comes_before_the_json_and_the_json_before_the_requests_parameters() -> None:
    json_text = text('{"max_tokens": 5, "top_k": 6}')
    parsed = parse({"max_tokens": 8, "top_k": 9}, sampling_parameters=json_text, max_tokens=number(7))
    assert (parsed.params.max_tokens, parsed.params.top_k) == (7, 6)
    assert parse({"top_k": 9}, max_tokens=number(7)).params.top_k == 9


@pytest.mark.parametrize("names", [("random_seed", "seed"), ("min_length", "min_tokens")])
def test_two_inputs_for_one_parameter_are_refused(names: tuple[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{names[0]} and {names[1]} are both given; leave one"):
        parse(**{name: number(3) for name in names})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"max_tokens": ids()}, "max_tokens has 0 elements; it must have 1"),
        ({"max_tokens": ids(1, 2)}, "max_tokens has 2 elements; it must have 1"),
        ({"max_tokens": ids(0)}, "max_tokens is 0; it must be a whole number of at least 1"),
        ({"temperature": number(np.nan, np.float32)}, "temperature is nan; it must be a finite number"),
        ({"random_seed": number(2**64 - 1, np.uint64)}, f"seed is {2**64 - 1}; it must be a whole number"),
        ({"stop_words": text(b"\xff")}, "stop_words is not UTF-8: byte 0xff at position 0"),
        ({"stop_token_ids": ids(500)}, r"stop_token_ids\[0\] is 500; it must be a whole number, 0 to 499"),
    ],
)
def test_wrong_inputs_are_refused(tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse(**tensors)


SERVED = [(spec, parameter) for spec, parameter in PARAMETERS if hasattr(SamplingParams, parameter)]


@pytest.mark.parametrize(("spec", "parameter"), SERVED, ids=[spec.name for spec, _ in SERVED])
def test_every_input_sets_its_parameter(spec: Spec, parameter: str) -> None:
    kinds = {"INT32": np.int32, "INT64": np.int64, "UINT64": np.uint64, "FP32": np.float32}
    value = text("x") if spec.data_type == "STRING" else number(1, kinds[spec.data_type])
    params = parse(**{spec.name: value}).params
    assert getattr(params, parameter) in (1, (1,), ("x",))


def test_token_ids_replace_the_prompt_and_are_not_repeated_in_the_output() -> None:
    parsed = parse(input_ids=ids(1, 499, 0))
    assert parsed.prompt == array("i", [1, 499, 0])
    assert (parsed.source, parsed.echo) == ("input_ids", "")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"input_ids": ids()}, "input_ids is empty; it must hold at least 1 token id"),
        ({"input_ids": ids(1, 500)}, r"input_ids\[1\] is 500; it must be a whole number, 0 to 499"),
        ({"input_ids": ids(-1)}, r"input_ids\[0\] is -1; it must be a whole number, 0 to 499"),
        (
            {"input_ids": ids(1), "text_input": text("a")},
            "text_input and input_ids are both given",
        ),
        ({"input_ids": ids(1), "messages": text("[]")}, "messages and input_ids are both given; leave one"),
    ],
)
def test_wrong_token_ids_are_refused(tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse(**tensors)
