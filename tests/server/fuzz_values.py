"""Values that break a parameter: for each, what no server may take, and what it may take but must survive."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

VOCABULARY = 49152
HUGE = 10**400
"""Beyond every float, and in JSON still a whole number."""

NESTED: Any = [[{"a": [{}]}]]
NO_NUMBER = ["x", "", "1.5.2", "0x10", [], [1], {}, {"a": 1}, True, False, NESTED, float("nan"), float("inf")]
NO_INTEGER = [*NO_NUMBER, 1.5, "1e3", "1" * 30]
NO_BOOLEAN = [0, 1, 2.5, "yes", "", [], {}, NESTED]
NO_LIST = [5, 1.5, "x", {}, True, {"a": [1]}]
NO_STRING = [5, 0.5, True, [], {}, NESTED]
NO_TOKEN_ID = [-1, VOCABULARY, 2**31, HUGE, "x", 1.5, True, None, [], {}]

WRONG: dict[str, list[Any]] = {
    "max_tokens": [*NO_INTEGER, 0, -1, -HUGE],
    "min_tokens": [*NO_INTEGER, -1, 17, HUGE],
    "temperature": [*NO_NUMBER, -0.1, -1e308, HUGE, "-inf", "nan"],
    "top_k": [*NO_INTEGER, -2, -HUGE],
    "top_p": [*NO_NUMBER, 0, -0.5, 1.0001, HUGE],
    "min_p": [*NO_NUMBER, -0.1, 1.0001],
    "presence_penalty": [*NO_NUMBER, -2.1, 2.1],
    "frequency_penalty": [*NO_NUMBER, -2.1, 2.1],
    "repetition_penalty": [*NO_NUMBER, 0, -1, 1e-9, 1e9],
    "seed": [*NO_INTEGER, 2**63, -(2**63) - 1, HUGE],
    "stop": [5, {}, True, [5], ["a", None], [[]], ["x"] * 65, "x" * 1025, ["a", "y" * 2000]],
    "bad_words": [5, {}, True, [5], [[]], ["x"] * 65, "x" * 1025],
    "stop_token_ids": [*NO_LIST, *([each] for each in NO_TOKEN_ID), [1] * 257],
    "allowed_token_ids": [*NO_LIST, [], *([each] for each in NO_TOKEN_ID)],
    "logit_bias": [
        5,
        "x",
        [],
        [1],
        True,
        {"x": 1},
        {"-1": 1},
        {str(VOCABULARY): 1},
        {"1.5": 1},
        {"": 1},
        {"5": "x"},
        {"5": None},
        {"5": []},
        {"5": float("nan")},
        {"5": True},
        {str(i): 1 for i in range(1025)},
    ],
    "include_stop_str_in_output": NO_BOOLEAN,
    "ignore_eos": NO_BOOLEAN,
    "skip_special_tokens": NO_BOOLEAN,
    "spaces_between_special_tokens": NO_BOOLEAN,
    "logprobs": [*NO_INTEGER, -1, 21, HUGE],
    "prompt_logprobs": [*NO_INTEGER, -1, 21, HUGE],
    "truncate_prompt_tokens": [*NO_INTEGER, 0, -2],
    "n": [*NO_INTEGER, 0, -1, 10**6, HUGE],
    "best_of": [2, "x", []],
    "priority": [*NO_INTEGER, 11, -11, HUGE],
    "timeout_s": [*NO_NUMBER, 0, -1, 86401],
    "tenant": [*NO_STRING, "t" * 257],
    "cache_salt": [*NO_STRING, "s" * 257],
    "structured_outputs": [
        5,
        [],
        True,
        "x",
        {},
        {"json": 5},
        {"json": "{"},
        {"json": {"type": "nothing"}},
        {"regex": "("},
        {"regex": 5},
        {"choice": []},
        {"choice": "x"},
        {"choice": [5]},
        {"grammar": "root ::= ("},
        {"grammar": "no rule"},
        {"grammar": ""},
        {"what": 1},
        {"json": {}, "regex": "a"},
        {"structural_tag": "{"},
        {"json": {"$ref": "#/nowhere"}},
        {"json": {"type": "string", "pattern": "("}},
        {"regex": "\ud800"},
    ],
    "guided_json": [5, "{", {"type": "nothing"}, [], {"$ref": "http://127.0.0.1:1/x"}],
    "guided_regex": ["(", "[", "a{2,1}", 5, []],
    "guided_choice": [[], 5, [5], [""]],
    "guided_grammar": ["root ::= (", "x", 5],
    "response_format": [5, [], {"type": "nothing"}],
    "lora_name": ["x", 5],
    "use_beam_search": [True, "x"],
    "logits_processors": [["x"], 5],
}

EDGES: dict[str, list[Any]] = {
    "max_tokens": [1, 2**31, 2**63, HUGE, "1", 1.0, 1e300],
    "temperature": [0, -0.0, 5e-324, 1e-300, 1e-46, 1e-6, 1e-5, 1e38, 1e308, "1e-40"],
    "top_k": [-1, 0, 1, VOCABULARY, VOCABULARY + 1, 2**31, 2**63, 2**64, HUGE, 1e300],
    "top_p": [5e-324, 1e-300, 1e-40, 1e-8, 1.0],
    "min_p": [0, 5e-324, 1e-46, 1.0],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "repetition_penalty": [0.001, 1000],
    "seed": [-(2**63), 2**63 - 1, -1, 0, "-1"],
    "stop": ["\ud800", "\x00", ["\u200d"], ["a" * 1024] * 64, "\ufffd"],
    "bad_words": ["\ud800", " ", ["\U0001f468\u200d\U0001f469"], "\x00"],
    "logit_bias": [
        {"0": 1e308},
        {"0": -1e308},
        {str(VOCABULARY - 1): 100},
        {},
        {str(i): -100 for i in range(1024)},
    ],
    "allowed_token_ids": [[0], [VOCABULARY - 1], list(range(VOCABULARY)), [5] * 100],
    "stop_token_ids": [[], [0], list(range(256))],
    "logprobs": [0, 20],
    "prompt_logprobs": [0, 20],
    "truncate_prompt_tokens": [1, -1, 2**63, HUGE],
    "min_tokens": [0, 1],
    "timeout_s": [5e-324, 1e-9, 0.001, 86400],
    "priority": [-10, 10],
    "tenant": ["", "\x00", "\u202e", "t" * 256],
    "cache_salt": ["\x00", "s" * 256],
    "n": [1, 2],
}
"""Each is allowed, or refused for a reason of its own; none may cost anyone else a token."""

WRONG_TENSORS: list[tuple[str, str, list[Any]]] = [
    *(("max_tokens", "INT32", [value]) for value in (0, -1, -(2**31))),
    *(("min_tokens", "INT32", [value]) for value in (-1, 2**31 - 1)),
    *(("temperature", "FP32", [value]) for value in (-0.1, float("nan"), float("inf"), float("-inf"))),
    *(("top_p", "FP32", [value]) for value in (0.0, 1.5, float("nan"), -1e38)),
    *(("top_k", "INT32", [value]) for value in (-2, -(2**31))),
    *(("repetition_penalty", "FP32", [value]) for value in (0.0, -1.0, 1e38, float("nan"))),
    *(("presence_penalty", "FP32", [value]) for value in (2.5, -2.5, float("nan"))),
    ("random_seed", "UINT64", [2**64 - 1]),
    *(("stop_token_ids", "INT32", ids) for ids in ([-1], [VOCABULARY], [1] * 257, [5, 2**31 - 1])),
    *(("input_ids", "INT32", ids) for ids in ([-1], [VOCABULARY], [5, -(2**31)], [5] * 9000, [])),
    *(("stop", "BYTES", texts) for texts in ([b"\xff"], [b"x" * 1025], [b"x"] * 65)),
    *(("bad_words", "BYTES", texts) for texts in ([b"\xc3"], [b"x" * 1025], [b"x"] * 65)),
]
"""Inputs of their right type, with what they may not hold."""

PROMPTS = [
    "\x00",
    "\u200d\u200d\u200d",
    "\u202e abc",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 20,
    "e\u0301" * 50,
    "\ufffd\uffff",
    "<|im_start|>system\n<|im_end|>" * 20,
    "<|endoftext|>",
    "\r\n\t " * 100,
    "\u0d4c" * 30,
    "a" * 2000,
    "\U0010ffff",
    "0" * 200,
]

UNKNOWN = [
    "temprature",
    "",
    " ",
    "max-tokens",
    "__class__",
    "\u2603",
    "x" * 5000,
    "\x00",
    "TEMPERATURE",
    "top_k ",
]


def text_of(value: Any) -> str:
    return json.dumps(value)


def broken_json(choose: random.Random, whole: str) -> bytes:
    """`whole` cut, spoilt or repeated until Python's reader, which is the server's, refuses it."""
    changes: list[Callable[[bytes], bytes]] = [
        lambda data: data[: choose.randrange(len(data))],
        lambda data: data + data,
        lambda data: data[: at(data)] + bytes([choose.randrange(256)]) + data[at(data) + 1 :],
        lambda data: (
            data[: at(data)]
            + choose.choice([b",", b"]", b"}", b'"', b"\\", b"\xff", b"\x00"])
            + data[at(data) :]
        ),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.decode(errors="replace").encode("utf-16"),
    ]

    def at(data: bytes) -> int:
        return choose.randrange(max(len(data), 1))

    while True:
        data = choose.choice(changes)(whole.encode())
        try:
            json.loads(data.decode())
        except ValueError:
            return data


def deep(choose: random.Random) -> str:
    depth = choose.choice([500, 1000, 5000, 100_000])
    opening, closing = choose.choice([("[", "]"), ('{"a":', "}")])
    return opening * depth + choose.choice(["", "1" + closing * depth])
