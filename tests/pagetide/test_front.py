"""What fronts ask of their target, and what their clients get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagetide.config import SettingsError
from pagetide.front import OneAnswer, read_target
from pagetide.front_trtllm import TensorRtLlm
from pagetide.parse_values import InvalidArgumentError

PROMPT = np.array([[b"Hello"]], dtype=np.object_)
TYPES = {
    "STRING": np.object_,
    "BOOL": np.bool_,
    "FP32": np.float32,
    "INT32": np.int32,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
}
FRONT = TensorRtLlm()
DTYPES = {spec.name: TYPES[spec.data_type] for spec in FRONT.inputs}


def tensors(**values: Any) -> dict[str, Any]:
    """Each value as a client of TensorRT-LLM sends it: [1, n], of the input's type."""
    return {
        name: np.array([value if isinstance(value, list) else [value]], dtype=DTYPES[name])
        for name, value in values.items()
    } | {"text_input": PROMPT}


def ask(**values: Any) -> dict[str, Any]:
    """What the target gets, as plain values; the sampling parameters as a dict."""
    asked = {name: tensor.item() for name, tensor in FRONT.ask(tensors(**values)).items()}
    return asked | {"sampling_parameters": json.loads(asked["sampling_parameters"])}


def sampling(**values: Any) -> dict[str, Any]:
    found = ask(**values)["sampling_parameters"]
    assert isinstance(found, dict)
    return found


def test_a_prompt_alone_asks_for_the_most_likely_tokens_without_the_prompt_before_them() -> None:
    assert ask() == {
        "text_input": b"Hello",
        "sampling_parameters": {"temperature": 0},
        "stream": False,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_logprobs": False,
        "return_cumulative_logprob": False,
    }


def test_what_langchain_and_llamaindex_send_is_understood() -> None:
    sent = {
        "max_tokens": 100,
        "top_k": 1,
        "top_p": 0.0,
        "temperature": 1.0,
        "length_penalty": 1.0,
        "repetition_penalty": 1.0,
        "random_seed": 42,
        "beam_width": 1,
        "stream": True,
    }
    asked = ask(**sent)
    assert asked["stream"] is True
    assert asked["sampling_parameters"] == {
        "max_tokens": 100,
        "temperature": 0,
        "repetition_penalty": 1.0,
        "seed": 42,
    }


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, {"temperature": 0}),
        ({"temperature": 0.7}, {"temperature": 0}),
        ({"top_k": 0, "top_p": 0.0}, {"temperature": 0}),
        ({"top_k": 1, "top_p": 0.9, "temperature": 0.7}, {"temperature": 0}),
        ({"top_k": 40}, {"top_k": 40, "top_p": 1.0}),
        ({"top_k": 40, "top_p": 0.0}, {"top_k": 40, "top_p": 1.0}),
        ({"top_p": 0.9}, {"top_k": 0, "top_p": 0.9}),
        ({"top_k": 40, "top_p": 0.9}, {"top_k": 40, "top_p": 0.9}),
    ],
)
def test_0_is_not_set_for_top_k_and_top_p(given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert sampling(**given) == meant


def test_words_lose_their_empty_strings() -> None:
    found = sampling(stop_words=[b"", b"\n\n", "fin\u00e9".encode()], bad_words=[b""])
    assert found == {"temperature": 0, "stop": ["\n\n", "fin\u00e9"]}
    assert sampling(bad_words=[b"dog"])["bad_words"] == ["dog"]


@pytest.mark.parametrize(
    ("end_id", "meant"),
    [(7, {"stop_token_ids": [7]}), (-1, {"ignore_eos": True}), (0, {"stop_token_ids": [0]})],
)
def test_end_id_ends_the_output(end_id: int, meant: dict[str, Any]) -> None:
    assert sampling(end_id=end_id) == {"temperature": 0} | meant


@pytest.mark.parametrize("name", ["seed", "random_seed"])
@pytest.mark.parametrize(
    ("given", "meant"), [(3, 3), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)]
)
def test_a_seed_keeps_its_bits(name: str, given: int, meant: int) -> None:
    assert sampling(**{name: given})["seed"] == meant


@pytest.mark.parametrize("name", ["min_length", "min_tokens"])
def test_both_names_of_the_least_length_are_known(name: str) -> None:
    assert sampling(**{name: 5})["min_tokens"] == 5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("beam_width", 4, "beam_width is 4; only 1 is served"),
        ("num_return_sequences", 0, "num_return_sequences is 0; only 1 is served"),
        ("return_context_logits", True, "return_context_logits is true; logits are not served"),
        ("return_generation_logits", True, "return_generation_logits is true; logits are not served"),
        ("stop_words", [b"\xff"], "stop_words is not UTF-8: byte 0xff at position 0"),
        ("max_tokens", [1, 2], "max_tokens has 2 elements; it must have 1"),
    ],
)
def test_what_is_not_served_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        FRONT.ask(tensors(**{name: value}))
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["return_context_logits", "return_generation_logits"])
def test_a_false_flag_for_what_is_not_served_asks_for_nothing(name: str) -> None:
    assert ask(**{name: False}) == ask()


def test_log_probabilities_come_as_tensorrt_llm_shapes_them() -> None:
    asked = ask(return_log_probs=True)
    assert asked["return_logprobs"] is True
    assert asked["return_cumulative_logprob"] is True
    assert asked["sampling_parameters"]["logprobs"] == 0
    tokens = [{"5": {"logprob": -0.5}}, {"7": {"logprob": -1.5}, "9": {"logprob": -0.25}}]
    told = FRONT.tell(
        {
            "text_output": np.array([b"ab"], dtype=np.object_),
            "finish_reason": np.array([b"length"], dtype=np.object_),
            "cumulative_logprob": np.array([-2.0], dtype=np.float32),
            "logprobs": np.array([json.dumps(tokens).encode()], dtype=np.object_),
        }
    )
    assert list(told) == ["text_output", "cum_log_probs", "output_log_probs"]
    assert told["cum_log_probs"].tolist() == [-2.0]
    assert told["output_log_probs"].tolist() == [[[-0.5, -1.5]]]


def test_counts_have_tensorrt_llms_type() -> None:
    told = FRONT.tell({"num_output_tokens": np.array([3], dtype=np.uint32)})
    assert told["num_output_tokens"].dtype == np.int32


def test_whole_numbers_have_the_type_of_2023_if_told() -> None:
    types = {spec.name: spec.data_type for spec in TensorRtLlm("UINT32").inputs}
    assert {types[name] for name in ("max_tokens", "top_k", "beam_width", "end_id")} == {"UINT32"}
    assert types["random_seed"] == "UINT64"


def test_one_answer_leaves_the_prompt_out_unless_asked() -> None:
    given = {"text_input": PROMPT[0]}
    assert OneAnswer().ask(given)["exclude_input_in_output"].item() is True
    echoed = given | {"exclude_input_in_output": np.array([False])}
    assert OneAnswer().ask(echoed)["exclude_input_in_output"].item() is False


def test_one_answer_is_no_stream() -> None:
    with pytest.raises(InvalidArgumentError, match="stream is true; this model answers once"):
        OneAnswer().ask({"text_input": PROMPT[0], "stream": np.array([True])})


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"target": 3}', '{"target": "a", "more": 1}'])
def test_model_json_names_a_target_and_nothing_else(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(SettingsError, match=r"model\.json"):
        read_target(tmp_path)
    (tmp_path / "model.json").write_text('{"target": "smollm2"}')
    assert read_target(tmp_path) == "smollm2"
