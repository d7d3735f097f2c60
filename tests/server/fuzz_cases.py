"""Broken requests, each made from a seed and its number alone, so that any one can be sent again."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fuzz_values as values
from triton_world import CONTENTS, MODEL, infer_request
from tritonclient.grpc import service_pb2 as pb

from pagetide.model_io import INPUTS, PROMPTS

DATATYPES = ("BOOL", "UINT8", "INT32", "INT64", "UINT64", "FP16", "FP32", "FP64", "BYTES", "", "NONSENSE")
SHAPES_OF_LISTS: list[list[int]] = [[1, 1], [], [-1], [2**31], [2**62, 4], [3], [1] * 40]
SHAPES: list[list[int]] = [[0], [2], [1, 1], [], [-1], [2**31], [2**62, 4], [1000], [1] * 40]
SHORT = {"max_tokens": 1}


@dataclass(frozen=True)
class Case:
    """`body` goes to `path` over HTTP, else `request` over gRPC. An edge may be served, but must not fail."""

    name: str
    request: pb.ModelInferRequest | None = None
    path: str = ""
    body: bytes = b""
    is_edge: bool = False


def make(seed: int, number: int) -> Case:
    choose = random.Random(f"{seed}:{number}")
    return choose.choice(MAKERS)(choose)


def _wrong_value(choose: random.Random) -> tuple[str, Any]:
    name = choose.choice(sorted(values.WRONG))
    return name, choose.choice(values.WRONG[name])


def _wrong_parameter(choose: random.Random) -> Case:
    name, value = _wrong_value(choose)
    sampling = SHORT | {name: value}
    return Case(f"wrong {name}", infer_request(sampling=sampling, stream=choose.random() < 0.5))


def _unknown_parameter(choose: random.Random) -> Case:
    sampling = SHORT | {choose.choice(values.UNKNOWN): choose.choice([1, "x", [], {}])}
    return Case("unknown parameter", infer_request(sampling=sampling))


def _wrong_request_parameter(choose: random.Random) -> Case:
    """`priority` there is Triton's own."""
    name, value = _wrong_value(choose)
    while name == "priority" or not _fits_a_parameter(value):
        name, value = _wrong_value(choose)
    return Case(f"wrong request parameter {name}", infer_request(parameters={name: value}))


def _fits_a_parameter(value: Any) -> bool:
    return type(value) in (bool, float, str) or (type(value) is int and -(2**63) <= value < 2**63)


def _broken_sampling(choose: random.Random) -> Case:
    whole = values.text_of(SHORT | {"stop": ["a\u00e9", "\u2603"], "logit_bias": {"5": 1.5}})
    return Case("sampling_parameters are no JSON", infer_request(sampling=values.broken_json(choose, whole)))


def _deep_sampling(choose: random.Random) -> Case:
    sampling = '{"logit_bias": ' + values.deep(choose) + "}"
    return Case("deep sampling_parameters", infer_request(sampling=sampling))


def _large_sampling(choose: random.Random) -> Case:
    sampling = choose.choice(
        [
            "9" * 100_000,
            '{"seed": ' + "9" * 5000 + "}",
            '{"stop": "' + "x" * 2**21 + '"}',
            "[1]",
            "5",
            '"x"',
            "null",
            "",
        ]
    )
    return Case("large or odd sampling_parameters", infer_request(sampling=sampling))


def _broken_messages(choose: random.Random) -> Case:
    whole = json.dumps([{"role": "user", "content": "Hi \u2603"}], ensure_ascii=False)
    odd = [
        "[]",
        "{}",
        "5",
        "null",
        '"x"',
        "[5]",
        "[[]]",
        "[{}]",
        '[{"role": 5}]',
        '[{"content": "x"}]',
        '[{"role": null}]',
    ]
    odd += ['[{"role": "user", "content": "\\ud800"}]', '[{"role": "\\udfff", "content": "x"}]', ""]
    data = choose.choice(
        [values.broken_json(choose, whole), choose.choice(odd).encode(), values.deep(choose).encode()]
    )
    request = infer_request(None)
    _bytes_input(request, "messages", [data])
    return Case("broken messages", request)


def _broken_tools(choose: random.Random) -> Case:
    odd = ["{", "5", '"x"', "{}", "[5]", "[null]", '[{"name": "\\ud800"}]', values.deep(choose)]
    request = infer_request(None)
    _bytes_input(request, "messages", [b'[{"role": "user", "content": "Hi"}]'])
    _bytes_input(request, "tools", [choose.choice(odd).encode()])
    return Case("broken tools", request)


def _broken_text(choose: random.Random) -> Case:
    tail = choose.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80" * 5])
    text = choose.choice([tail, b"abc" + tail, b"", b"x" * 1_000_000, b"word " * 9000, b"\xf0\x9f" * 1000])
    return Case("broken text_input", infer_request(text))


def _wrong_tensor(choose: random.Random) -> Case:
    """An input of a wrong type or shape, its content in the message's typed fields."""
    spec = choose.choice(INPUTS)
    request = infer_request(None if spec.name in PROMPTS else "Hi", stream=None)
    own = "BYTES" if spec.data_type == "STRING" else spec.data_type
    datatype, shape = choose.choice([each for each in DATATYPES if each != own]), [1]
    if choose.random() < 0.5:
        datatype, shape = own, choose.choice(SHAPES if spec.dims == (1,) else SHAPES_OF_LISTS)
    tensor = request.inputs.add(name=spec.name, datatype=datatype, shape=shape)
    _fill(tensor, own, [b"x"] if own == "BYTES" else [1])
    return Case("wrong type or shape", request)


def _wrong_tensor_value(choose: random.Random) -> Case:
    """Of the right type and shape, and no value that the input may have."""
    name, datatype, content = choose.choice(values.WRONG_TENSORS)
    request = infer_request(None if name == "input_ids" else "Hi", sampling=SHORT)
    tensor = request.inputs.add(name=name, datatype=datatype, shape=[len(content)])
    _fill(tensor, datatype, content)
    return Case(f"wrong input {name}", request)


def _inputs_at_odds(choose: random.Random) -> Case:
    """Each in order, but not together."""
    pairs = [
        [("stop", b"a"), ("stop_words", b"b")],
        [("tools", b"[]")],
        [("messages", b'[{"role": "user", "content": "Hi"}]')],
    ]
    request = infer_request("Hi", sampling=SHORT)
    for name, content in choose.choice(pairs):
        _bytes_input(request, name, [content])
    return Case("inputs at odds", request)


def _fill(tensor: Any, datatype: str, content: list[Any]) -> None:
    getattr(tensor.contents, CONTENTS[datatype]).extend(content)


def _broken_raw(choose: random.Random) -> Case:
    """Raw content whose lengths lie."""
    request = pb.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[choose.choice([1, 1, 1, 2, 0])])
    length = choose.choice([0, 1, 4, 5, 100, 2**31 - 1, 2**31, 2**32 - 1])
    raw = struct.pack("<I", length) + b"Hi"
    request.raw_input_contents.append(choose.choice([raw, raw[:3], b"", raw * 3, raw + b"\0"]))
    if choose.random() < 0.3:
        request.raw_input_contents.append(b"too many")
    return Case("broken raw content", request)


def _inputs_that_do_not_fit(choose: random.Random) -> Case:
    request = infer_request(choose.choice([None, "Hi"]))
    if not request.inputs or request.inputs[0].name != "text_input":
        return Case("no prompt", request)
    twice = choose.choice(["text_input", "messages", "no_such_input", "", "stream", "x" * 10_000])
    _bytes_input(request, twice, [b"[]"])
    return Case("inputs that don't fit", request)


def _wrong_target(choose: random.Random) -> Case:
    name, version = choose.choice(
        [("nothing", ""), (MODEL, "99"), (MODEL, "x"), ("", ""), ("../..", ""), (MODEL, "-1")]
    )
    return Case("no such model", infer_request(model=name, version=version))


def _wrong_output(choose: random.Random) -> Case:
    request = infer_request(sampling=SHORT)
    request.outputs.add(name=choose.choice(["nothing", "x" * 1000, "TEXT_OUTPUT", "text_input"]))
    return Case("no such output", request)


def _wrong_flag(choose: random.Random) -> Case:
    flag = choose.choice(["stream", "return_logprobs", "exclude_input_in_output", "return_finish_reason"])
    value = choose.choice(["yes", "", 3, 0, 1.5, "\u2603"])
    return Case("wrong flag", infer_request(stream=None, parameters={flag: value}))


def _http_value(choose: random.Random) -> Case:
    name, value = _wrong_value(choose)
    while (
        value in ([], {})
        or value == [""]
        or "inf" in json.dumps(value).lower()
        or "nan" in json.dumps(value).lower()
    ):
        name, value = _wrong_value(choose)
    body = {"text_input": "Hi", "sampling_parameters": json.dumps(SHORT | {name: value})}
    return _http(choose, f"HTTP: wrong {name}", json.dumps(body).encode())


def _http_broken(choose: random.Random) -> Case:
    """Triton's reader skips a byte order mark, Python's does not."""
    whole = values.text_of({"text_input": "Hi \u2603", "max_tokens": 1, "parameters": {"stop": "a"}})
    body = values.broken_json(choose, whole)
    while body.startswith(b"\xef\xbb\xbf"):
        body = values.broken_json(choose, whole)
    return _http(choose, "HTTP: no JSON", body)


def _http_odd(choose: random.Random) -> Case:
    odd = [
        {},
        [],
        5,
        "x",
        None,
        {"text_input": 5},
        {"text_input": ["a", "b"]},
        {"text_input": {}},
        {"text_input": None},
        {"text_input": "Hi", "stream": "yes"},
        {"text_input": "Hi", "no_such": 1},
        {"text_input": "Hi", "parameters": 5},
        {"text_input": "Hi", "parameters": {"max_tokens": [1, 2]}},
        {"text_input": "Hi", "max_tokens": -1},
        {"text_input": "Hi", "parameters": {"parameters": {}}},
        {"text_input": ""},
        {"messages": "[]"},
        {"messages": []},
        {"text_input": "Hi", "temperature": "x"},
        {"text_input": "Hi", "id": {}, "max_tokens": 0},
    ]
    return _http(choose, "HTTP: odd body", json.dumps(choose.choice(odd)).encode())


def _http(choose: random.Random, name: str, body: bytes) -> Case:
    return Case(name, path=choose.choice(["generate", "generate_stream"]), body=body)


def _http_infer(choose: random.Random) -> Case:
    """This endpoint refuses decoupled models, after it has read the body."""
    shape, datatype = choose.choice(SHAPES), choose.choice(DATATYPES)
    tensor = {
        "name": choose.choice(INPUTS).name,
        "shape": shape,
        "datatype": datatype,
        "data": choose.choice([["x"], [], [[1]], 5]),
    }
    return Case("HTTP: infer", path="infer", body=json.dumps({"inputs": [tensor]}).encode())


def _edge(choose: random.Random) -> Case:
    names = choose.sample(sorted(values.EDGES), choose.randint(1, 4))
    sampling = {"max_tokens": 2} | {name: choose.choice(values.EDGES[name]) for name in names}
    if sampling["max_tokens"] not in (1, "1", 1.0):
        sampling["timeout_s"] = 0.2
    request = infer_request(
        "Hi", sampling=sampling, stream=choose.random() < 0.5, return_logprobs=choose.random() < 0.3
    )
    return Case("edge: parameters", request, is_edge=True)


def _edge_prompt(choose: random.Random) -> Case:
    prompt = choose.choice(values.PROMPTS)
    if choose.random() < 0.5:
        return Case("edge: prompt", infer_request(prompt, sampling=SHORT), is_edge=True)
    role = choose.choice(["user", "system", "assistant", "tool", "", "\x00", "nobody"])
    content = choose.choice([prompt, None, 5, [], {}, [{"type": "text", "text": prompt}], values.NESTED])
    request = infer_request(None, sampling=SHORT)
    _bytes_input(request, "messages", [json.dumps([{"role": role, "content": content}]).encode()])
    return Case("edge: messages", request, is_edge=True)


def _bytes_input(request: pb.ModelInferRequest, name: str, contents: list[bytes]) -> None:
    tensor = request.inputs.add(name=name, datatype="BYTES", shape=[len(contents)])
    tensor.contents.bytes_contents.extend(contents)


MAKERS: list[Callable[[random.Random], Case]] = [
    *[_wrong_parameter] * 6,
    _unknown_parameter,
    *[_wrong_request_parameter] * 2,
    _broken_sampling,
    _deep_sampling,
    _large_sampling,
    *[_broken_messages] * 2,
    _broken_tools,
    _broken_text,
    *[_wrong_tensor] * 2,
    *[_wrong_tensor_value] * 2,
    _inputs_at_odds,
    _broken_raw,
    _inputs_that_do_not_fit,
    _wrong_target,
    _wrong_output,
    _wrong_flag,
    *[_http_value] * 2,
    _http_broken,
    _http_odd,
    _http_infer,
    *[_edge] * 3,
    _edge_prompt,
]
