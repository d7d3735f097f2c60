"""A request is read exactly, or refused with the field, the value and the limit."""

from __future__ import annotations

import json
import math
from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parse_world import LIMITS, flag, number, parse, text

from pagetide.logit_edits import TokenMask
from pagetide.model_io import RETURNED
from pagetide.parse import parse_request
from pagetide.parse_values import InvalidArgumentError
from pagetide.request import SamplingParams

REPEATABLE = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def sampling(values: dict[str, Any] | str | bytes) -> SamplingParams:
    return parse(
        return_prompt_logprobs=flag(True),
        sampling_parameters=text(json.dumps(values) if isinstance(values, dict) else values),
    ).params


def refusal(values: dict[str, Any] | str | bytes) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        sampling(values)
    return str(caught.value)


def test_without_parameters_vllms_defaults_hold() -> None:
    assert parse().params == SamplingParams(max_tokens=16, temperature=1.0, top_p=1.0)


EVERYTHING = {
    "max_tokens": 8,
    "min_tokens": 2,
    "temperature": 0.5,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.1,
    "presence_penalty": -2,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"7": "-3.5", "499": 1e9},
    "allowed_token_ids": ["1", 499, 0],
    "bad_words": ["no", "never ever"],
    "seed": -(2**63),
    "stop": ["\n", "END"],
    "stop_token_ids": [1, 499],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "logprobs": 3,
    "prompt_logprobs": 0,
    "truncate_prompt_tokens": 12,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}
AS_KEPT = {
    "stop": ("\n", "END"),
    "stop_token_ids": (1, 499),
    "logit_bias": ((7, -3.5), (499, 100.0)),
    "allowed_token_ids": TokenMask.of([0, 1, 499]),
    "bad_words": ("no", "never ever"),
}
EXPECTED = SamplingParams(**(EVERYTHING | AS_KEPT))  # type: ignore[arg-type]


def test_every_parameter_arrives_by_the_tensor() -> None:
    assert sampling(EVERYTHING) == EXPECTED


def test_every_parameter_arrives_as_a_string_too() -> None:
    as_strings = {
        name: value if isinstance(value, (list, dict)) else str(value).lower()
        for name, value in EVERYTHING.items()
    }
    assert sampling(as_strings) == EXPECTED


def test_every_scalar_parameter_arrives_by_the_requests_parameters() -> None:
    scalars = {name: value for name, value in EVERYTHING.items() if not isinstance(value, (list, dict))}
    parsed = parse(scalars | {"stop": "END"}, return_prompt_logprobs=flag(True))
    assert parsed.params == sampling(scalars | {"stop": "END"})


def test_the_tensor_wins_over_the_requests_parameters() -> None:
    parsed = parse({"max_tokens": 99, "no_such": 1}, sampling_parameters=text('{"max_tokens": 3}'))
    assert parsed.params.max_tokens == 3


def test_sampling_parameters_may_be_a_string_among_the_requests_parameters() -> None:
    assert parse({"sampling_parameters": '{"max_tokens": 3}'}).params.max_tokens == 3


def test_tritons_own_parameters_are_not_sampling_parameters() -> None:
    own = {"sequence_id": 3, "sequence_start": True, "priority": 1, "timeout": 5}
    assert parse(own | {"triton_enable_empty_final_response": True}).params == SamplingParams()


def test_null_stands_for_the_default() -> None:
    assert sampling({"max_tokens": None, "seed": None, "guided_decoding": None}) == SamplingParams()


def test_what_asks_for_nothing_is_accepted() -> None:
    neutral = {"n": 1, "best_of": "1", "presence_penalty": 0, "bad_words": [""], "logit_bias": {}, "seed": -1}
    assert sampling(neutral | {"use_beam_search": False, "detokenize": "true"}) == SamplingParams()


REFUSED = [
    ({"max_tokens": 0}, "max_tokens is 0; it must be a whole number of at least 1"),
    ({"max_tokens": -4}, "max_tokens is -4; it must be a whole number of at least 1"),
    ({"max_tokens": True}, "max_tokens is true; it must be a whole number of at least 1"),
    ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number of at least 1"),
    ({"max_tokens": "ten"}, "max_tokens is 'ten'; it must be a whole number of at least 1"),
    ({"max_tokens": [1]}, "max_tokens is [1]; it must be a whole number of at least 1"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9; it must be at most max_tokens, 8"),
    ({"temperature": -0.1}, "temperature is -0.1; it must be a finite number of at least 0"),
    ({"temperature": "nan"}, "temperature is 'nan'; it must be a finite number of at least 0"),
    ({"temperature": False}, "temperature is false; it must be a finite number of at least 0"),
    ('{"temperature": NaN}', "temperature is nan; it must be a finite number of at least 0"),
    ('{"temperature": 1e999}', "temperature is inf; it must be a finite number of at least 0"),
    ('{"temperature": -Infinity}', "temperature is -inf; it must be a finite number of at least 0"),
    ({"temperature": 10**400}, "it must be a finite number of at least 0"),
    ({"top_p": 0}, "top_p is 0; it must be a number above 0, at most 1"),
    ({"top_p": 1.01}, "top_p is 1.01; it must be a number above 0, at most 1"),
    ({"top_k": -2}, "top_k is -2; it must be a whole number of at least -1"),
    ({"min_p": 1.5}, "min_p is 1.5; it must be a number from 0 to 1"),
    ({"seed": 2**63}, f"seed is {2**63}; it must be a whole number, {-(2**63)} to {2**63 - 1}"),
    ({"logprobs": 21}, "logprobs is 21; this model serves at most 20"),
    ({"stop": ""}, "stop is ''; it must be a string or a list of strings, none of them empty"),
    ({"stop": ["a", 3]}, "stop is ['a', 3]; it must be a string or a list of strings"),
    ({"stop": ["a", "\ud800"]}, "stop is ['a', '\\ud800']; it must be Unicode text"),
    ({"bad_words": "\udfff"}, "bad_words is ['\\udfff']; it must be Unicode text"),
    ({"stop": ["x"] * 65}, "stop has 65 strings; at most 64 are served"),
    ({"stop": "x" * 1025}, "stop has a string of 1025 characters; at most 1024 are served"),
    ({"stop_token_ids": 3}, "stop_token_ids is 3; it must be a list of token ids"),
    ({"stop_token_ids": [1, 500]}, "stop_token_ids[1] is 500; it must be a whole number, 0 to 499"),
    ({"ignore_eos": 1}, "ignore_eos is 1; it must be true or false"),
    ({"n": 0}, "n is 0; it must be a whole number, 1 to 8"),
    ({"n": 9}, "n is 9; it must be a whole number, 1 to 8"),
    ({"n": True}, "n is true; it must be a whole number, 1 to 8"),
    ({"n": 2, "temperature": 0}, "n is 2; with temperature 0 it must be 1, as all samples would be the same"),
    ({"presence_penalty": 2.5}, "presence_penalty is 2.5; it must be a number from -2 to 2"),
    ('{"presence_penalty": NaN}', "presence_penalty is nan; it must be a number from -2 to 2"),
    ({"frequency_penalty": "-inf"}, "frequency_penalty is '-inf'; it must be a number from -2 to 2"),
    ({"frequency_penalty": [1]}, "frequency_penalty is [1]; it must be a number from -2 to 2"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be a number from 0.001 to 1000"),
    ('{"repetition_penalty": 1e999}', "repetition_penalty is inf; it must be a number from 0.001 to 1000"),
    ({"logit_bias": [1]}, "logit_bias is [1]; it must be an object from token ids to numbers"),
    ({"logit_bias": {"500": 1}}, "a token of logit_bias is '500'; it must be a whole number, 0 to 499"),
    ({"logit_bias": {"a": 1}}, "a token of logit_bias is 'a'; it must be a whole number, 0 to 499"),
    ('{"logit_bias": {"5": NaN}}', "logit_bias[5] is nan; it must be a finite number"),
    ({"logit_bias": {"5": None}}, "logit_bias[5] is null; it must be a finite number"),
    ({"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias has 1025 tokens; at most 1024 are served"),
    ({"allowed_token_ids": []}, "allowed_token_ids is []; it must be a list of at least one token id"),
    ({"allowed_token_ids": 3}, "allowed_token_ids is 3; it must be a list of token ids"),
    ({"allowed_token_ids": [1, -1]}, "allowed_token_ids[1] is -1; it must be a whole number, 0 to 499"),
    ({"allowed_token_ids": [1] * 501}, "allowed_token_ids has 501 token ids; at most 500 are served"),
    ({"bad_words": [3]}, "bad_words is [3]; it must be a string or a list of strings"),
    ({"bad_words": ["x"] * 65}, "bad_words has 65 strings; at most 64 are served"),
    ({"bad_words": "x" * 1025}, "bad_words has a string of 1025 characters; at most 1024 are served"),
    ({"logprobs": -2}, "logprobs is -2; it must be a whole number of at least -1"),
    ({"logprobs": -1}, "logprobs is -1, all 500 tokens; this model serves at most 20"),
    ({"prompt_logprobs": 21}, "prompt_logprobs is 21; this model serves at most 20"),
    ({"prompt_logprobs": True}, "prompt_logprobs is true; it must be a whole number of at least -1"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0; it must be a whole number of at least 1"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens is -2; it must be a whole number of at least 1"),
    ({"spaces_between_special_tokens": 1}, "spaces_between_special_tokens is 1; it must be true or false"),
    ({"temprature": 1}, "unknown sampling parameter 'temprature'; did you mean 'temperature'?"),
    (
        {"zzz": 1},
        "unknown sampling parameter 'zzz'; known: allowed_token_ids, bad_words, cache_salt, frequency",
    ),
    ("[1]", "sampling_parameters is [1]; it must be a JSON object"),
    ("", "sampling_parameters is not JSON: Expecting value at line 1, column 1"),
    ('{"top_k": 3,}', "sampling_parameters is not JSON: "),
    ('{\n"top_k" 3}', "Expecting ':' delimiter at line 2, column 9"),
    (b'{"stop": "\xff"}', "sampling_parameters is not UTF-8: byte 0xff at position 10"),
    ("[" * 200_000, "sampling_parameters is JSON that can't be read"),
    ('{"seed": ' + "1" * 5000 + "}", "sampling_parameters is JSON that can't be read"),
    (" " * (2**20 + 1), f"sampling_parameters has {2**20 + 1} bytes; at most {2**20} are served"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_is_wrong_is_refused_by_name_value_and_limit(
    values: dict[str, Any] | str | bytes, message: str
) -> None:
    assert message in refusal(values)


def test_a_message_stays_short_and_printable() -> None:
    message = refusal({"max_tokens": "\ud800\x00" * 10_000})
    assert len(message) < 250
    assert message.isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)


@REPEATABLE
@given(values=st.dictionaries(st.sampled_from([*EVERYTHING, "n", "x"]), JSON))
def test_any_values_are_taken_or_refused_and_what_is_taken_is_sound(values: dict[str, Any]) -> None:
    try:
        params = sampling(values)
    except InvalidArgumentError:
        return
    assert 0 <= params.min_tokens <= params.max_tokens
    assert math.isfinite(params.temperature)
    assert params.temperature >= 0
    assert 0 < params.top_p <= 1
    assert type(params.max_tokens) is int
    assert all(type(each) is str and each for each in params.stop)


@REPEATABLE
@given(data=st.binary(max_size=60))
def test_any_bytes_as_sampling_parameters_are_taken_or_refused(data: bytes) -> None:
    try:
        params = sampling(data)
    except InvalidArgumentError:
        return
    assert isinstance(params, SamplingParams)


def prompt_refusal(data: bytes) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        parse(text_input=text(data))
    return str(caught.value)


def test_a_bad_prompt_is_refused() -> None:
    assert prompt_refusal(b"") == "text_input is empty; it must hold at least 1 byte"
    assert prompt_refusal(b"x" * 1001) == "text_input has 1001 bytes; it must have at most 1000"
    assert prompt_refusal(b"ab\xc3(") == "text_input is not UTF-8: byte 0xc3 at position 2"
    with pytest.raises(InvalidArgumentError, match="text_input has 2 elements; it must have 1"):
        parse(text_input=np.array([b"a", b"b"], dtype=np.object_))
    with pytest.raises(InvalidArgumentError, match="text_input is missing"):
        parse_request({}, "{}", LIMITS)


def test_not_streamed_the_prompt_comes_first_unless_excluded() -> None:
    assert parse().echo == "Hello"
    assert parse(exclude_input_in_output=flag(False)).echo == "Hello"
    assert parse(exclude_input_in_output=flag(True)).echo == ""
    assert parse(stream=flag(True)).echo == ""
    assert parse(stream=flag(True), exclude_input_in_output=flag(True)).echo == ""


def test_a_stream_with_the_prompt_in_it_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="exclude_input_in_output is false; with stream"):
        parse(stream=flag(True), exclude_input_in_output=flag(False))


def test_options_may_come_as_parameters() -> None:
    parsed = parse({"stream": "true", "return_finish_reason": True, "max_tokens": 2})
    assert parsed.stream
    assert parsed.returned == {"finish_reason"}
    assert parsed.params.max_tokens == 2
    with pytest.raises(InvalidArgumentError, match="stream is 3; it must be true or false"):
        parse({"stream": 3})


def test_every_output_can_be_asked_for() -> None:
    for name in RETURNED:
        assert parse(**{f"return_{name}": flag(True)}).returned == {name}
        assert parse(**{f"return_{name}": flag(False)}).returned == frozenset()


def test_a_cumulative_logprob_needs_the_tokens_logprobs() -> None:
    assert parse(return_cumulative_logprob=flag(True)).params.logprobs == 0
    assert parse({"logprobs": 4}, return_cumulative_logprob=flag(True)).params.logprobs == 4


def test_max_tokens_is_cut_to_what_the_model_has_left() -> None:
    for num_prompt_tokens, max_tokens in ((90, 10), (10, 16), (99, 1)):
        assert LIMITS.fit("text_input", num_prompt_tokens, SamplingParams()).max_tokens == max_tokens


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(
        InvalidArgumentError,
        match="text_input has 100 tokens; it must have at most 99, as prompt and output together take",
    ):
        LIMITS.fit("text_input", 100, SamplingParams())
    with pytest.raises(InvalidArgumentError, match="messages has no tokens; it must have at least 1"):
        LIMITS.fit("messages", 0, SamplingParams())
    with pytest.raises(
        InvalidArgumentError, match="min_tokens is 11; after a prompt of 90 tokens at most 10"
    ):
        LIMITS.fit("text_input", 90, SamplingParams(min_tokens=11, max_tokens=12))


def test_what_the_settings_forbid_is_refused_with_their_limit() -> None:
    small = replace(LIMITS, max_prompt_tokens=7, max_output_tokens=9, max_logprobs=2, max_request_bytes=30)
    with pytest.raises(InvalidArgumentError, match=r"^input_ids has 8 tokens; it must have at most 7$"):
        small.fit("input_ids", 8, SamplingParams())
    for asked, message in (
        ({"max_tokens": 10}, "max_tokens is 10; this model serves at most 9"),
        ({"logprobs": 3}, "logprobs is 3; this model serves at most 2"),
        ({"stop": "x" * 21}, "the request has 38 bytes; it must have at most 30"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            parse(asked, small)
    with pytest.raises(InvalidArgumentError, match="the request has 31 bytes; it must have at most 30"):
        parse("", small, text_input=text("x" * 27), max_tokens=number(1))


def test_the_default_of_max_tokens_is_within_the_limit() -> None:
    assert parse({}, replace(LIMITS, max_output_tokens=9)).params.max_tokens == 9


def test_more_stop_tokens_than_are_served_are_refused_with_both_counts() -> None:
    assert (
        refusal({"stop_token_ids": [1] * 257}) == "stop_token_ids has 257 token ids; at most 256 are served"
    )


def test_the_last_tokens_of_the_prompt_are_kept() -> None:
    prompt = array("i", range(10))
    for asked, kept in (({}, range(10)), ({"truncate_prompt_tokens": "3"}, range(7, 10))):
        assert list(LIMITS.truncate(prompt, sampling(asked))) == list(kept)
    assert LIMITS.truncate(prompt, sampling({"truncate_prompt_tokens": 99})) == prompt


def test_minus_one_keeps_what_leaves_room_for_the_output() -> None:
    keep = {"truncate_prompt_tokens": -1}
    assert len(LIMITS.truncate(array("i", range(500)), sampling(keep | {"max_tokens": 30}))) == 70
    assert len(LIMITS.truncate(array("i", range(500)), sampling(keep | {"max_tokens": 3000}))) == 1


def test_the_whole_vocabulary_is_told_where_the_settings_allow_it() -> None:
    for allowed in (-1, 500, 501):
        params = parse({"logprobs": -1}, replace(LIMITS, max_logprobs=allowed)).params
        assert params.logprobs == -1
    with pytest.raises(InvalidArgumentError, match="logprobs is -1, all 500 tokens; this model serves at mo"):
        parse({"logprobs": -1}, replace(LIMITS, max_logprobs=499))


def test_a_prompt_is_not_scored_for_a_client_that_would_not_see_it() -> None:
    assert parse({"prompt_logprobs": 2}).params.prompt_logprobs is None
    assert parse({"prompt_logprobs": 2}, return_prompt_logprobs=flag(True)).params.prompt_logprobs == 2
