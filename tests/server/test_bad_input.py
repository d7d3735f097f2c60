"""A bad request is refused by field, value and limit, and the others never notice."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from triton_world import SMALL, Triton

pytestmark = pytest.mark.server

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty prompt": ({"prompt": ""}, "text_input is empty; it must hold at least 1 byte"),
    "no prompt": ({"prompt": None}, "text_input"),
    "invalid UTF-8": ({"prompt": b"ab\xff"}, "text_input is not UTF-8: byte 0xff at position 2"),
    "10 MB of text": (
        {"prompt": "x" * 10_000_000},
        "text_input has 10000000 bytes; it must have at most 262144",
    ),
    "prompt over the model's length": (
        {"prompt": "word " * 9000},
        "tokens; it must have at most 8191, as prompt and output together take at most 8192",
    ),
    "prompt over the pool": (
        {"prompt": "word " * 1440, "model": SMALL},
        "tokens; it must have at most 1439, as prompt and output together take at most 1440",
    ),
    "max_tokens 0": (
        {"sampling": {"max_tokens": 0}},
        "max_tokens is 0; it must be a whole number of at least 1",
    ),
    "max_tokens negative": ({"parameters": {"max_tokens": -3}}, "max_tokens is -3; it must be"),
    "max_tokens true": ({"sampling": {"max_tokens": True}}, "max_tokens is true; it must be a whole number"),
    "unknown parameter": (
        {"parameters": {"temprature": 1}},
        "unknown sampling parameter 'temprature'; did you mean 'temperature'?",
    ),
    "n too large": ({"sampling": {"n": 17}}, "n is 17; it must be a whole number, 1 to 16"),
    "n greedy": ({"sampling": {"n": 2, "temperature": 0}}, "n is 2; with temperature 0 it must be 1"),
    "not served": ({"sampling": {"best_of": 2}}, "best_of is 2; only 1 is served"),
    "logprobs": ({"sampling": {"logprobs": 21}}, "logprobs is 21; this model serves at most 20"),
    "NaN": (
        {"sampling": '{"temperature": NaN}'},
        "temperature is nan; it must be a finite number of at least 0",
    ),
    "top_p": ({"sampling": {"top_p": 1.5}}, "top_p is 1.5; it must be a number above 0, at most 1"),
    "token out of the vocabulary": (
        {"sampling": {"stop_token_ids": [49152]}},
        "stop_token_ids[0] is 49152; it must be a whole number, 0 to 49151",
    ),
    "invalid JSON": (
        {"sampling": '{"max_tokens": 3,,}'},
        "sampling_parameters is not JSON: ",
    ),
    "no object": ({"sampling": "[3]"}, "sampling_parameters is [3]; it must be a JSON object"),
    "sampling not UTF-8": ({"sampling": b'{"stop": "\xfe"}'}, "sampling_parameters is not UTF-8: byte 0xfe"),
    "deep JSON": ({"sampling": "[" * 100_000}, "sampling_parameters is JSON that can't be read"),
    "statistics and text": (
        {"statistics": True},
        "statistics is true and text_input is given; statistics come alone",
    ),
    "prompt in a stream": (
        {"exclude_input_in_output": False},
        "exclude_input_in_output is false; with stream",
    ),
}
ANIMALS = ("cats", "dogs", "owls", "bees", "ants", "cows", "bats", "eels")
PROMPTS = [f"Tell a story about {animal}." for animal in ANIMALS]
SAMPLING = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_a_bad_request_is_refused(triton: Triton, options: dict[str, Any], message: str) -> None:
    assert message in triton.error(**options)


def test_eight_streams_go_on_untouched_while_bad_requests_come(idle: Triton) -> None:
    requests = [{"prompt": prompt, "sampling": SAMPLING} for prompt in PROMPTS]
    undisturbed = idle.together(requests)
    with ThreadPoolExecutor(1) as pool:
        disturbed = pool.submit(idle.together, requests)
        refused = 0
        while not disturbed.done() or not refused:
            for options, message in BAD.values():
                assert message in idle.error(**options)
                refused += 1
    for before, during in zip(undisturbed, disturbed.result(), strict=True):
        assert "".join(response.text for response in during) == "".join(response.text for response in before)


def test_parameters_that_are_no_text_are_refused(triton: Triton) -> None:
    """Triton passes on what HTTP brings, in whatever encoding."""
    _, answer = triton.post("generate", b'{"text_input": "a", "ten\xe8nt": "b"}')
    assert json.loads(answer)["error"].startswith("parameters is not UTF-8: byte 0xe8 at position")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"text_input": 3}',
        b'{"text_input": ["a", "b"]}',
        b'{"text_input": "a", "logit_bias": {"1": 2}}',
        b'{"text_input": "a", "max_tokens": "many"}',
        b'{"text_input": "a", "max_tokens": [1, 2]}',
        b'{"text_input": "a", "stream": "yes"}',
        b'{"text_input": "\xff"}',
        b'{"no_text": "a"}',
    ],
)
def test_a_bad_body_over_http_is_refused(triton: Triton, body: bytes) -> None:
    """Triton itself reads the JSON, and answers some of these with 500."""
    status, answer = triton.post("generate", body)
    assert status >= 400
    assert json.loads(answer)["error"]
