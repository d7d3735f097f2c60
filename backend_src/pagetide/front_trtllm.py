"""TensorRT-LLM's Triton models from outside: their inputs as the engine's, its outputs as theirs.

Names, types, shapes and meanings are those of the models `ensemble` and `tensorrt_llm_bls` of
github.com/triton-inference-server/tensorrtllm_backend and, for what 0 means, of TensorRT-LLM's sampling.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pagetide.front import flag, text
from pagetide.model_io import Spec
from pagetide.parse_tensors import Tensor, Tensors, decoded, single
from pagetide.parse_values import InvalidArgumentError, shown

_NUMBERS = {
    "max_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "min_length": "min_tokens",
    "temperature": "temperature",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_WORDS = {"stop_words": "stop", "bad_words": "bad_words"}
_SEEDS = ("seed", "random_seed")
_ONLY_ONE = ("beam_width", "num_return_sequences")
_NEVER = ("return_context_logits", "return_generation_logits")
_PASSED_ON = ("exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens")
_OUTPUTS: Mapping[str, Callable[[Tensor], tuple[str, Tensor]]] = {
    "text_output": lambda tensor: ("text_output", tensor),
    "cumulative_logprob": lambda tensor: ("cum_log_probs", tensor),
    "logprobs": lambda tensor: ("output_log_probs", _chosen(tensor)),
    "num_input_tokens": lambda tensor: ("num_input_tokens", tensor.astype(np.int32)),
    "num_output_tokens": lambda tensor: ("num_output_tokens", tensor.astype(np.int32)),
}


class TensorRtLlm:
    """The model `ensemble`. `integers` is the type of its whole numbers: UINT32 until 2023, INT32 since."""

    required = frozenset({"text_input"})
    outputs: tuple[Spec, ...] = (
        Spec("text_output", "STRING", (-1,)),
        Spec("cum_log_probs", "FP32", (-1,)),
        Spec("output_log_probs", "FP32", (-1, -1)),
        Spec("num_input_tokens", "INT32"),
        Spec("num_output_tokens", "INT32"),
    )
    max_batch_size = 1
    streams = True

    def __init__(self, integers: str = "INT32") -> None:
        whole = ("max_tokens", "min_tokens", "min_length", "top_k", "end_id", "pad_id", *_ONLY_ONE)
        real = ("temperature", "top_p", "length_penalty", "repetition_penalty", "presence_penalty")
        flags = ("stream", "return_log_probs", *_PASSED_ON, *_NEVER)
        self.inputs = (
            Spec("text_input", "STRING"),
            *(Spec(name, "STRING", (-1,)) for name in _WORDS),
            *(Spec(name, integers) for name in whole),
            *(Spec(name, "FP32") for name in (*real, "frequency_penalty")),
            *(Spec(name, "UINT64") for name in _SEEDS),
            *(Spec(name, "BOOL") for name in flags),
        )

    def ask(self, tensors: Tensors) -> Tensors:
        values = {name: single(name, tensor) for name, tensor in tensors.items() if name not in _WORDS}
        _check_is_served(values)
        logprobs = bool(values.get("return_log_probs"))
        sampling = _sampling(values) | _words(tensors) | ({"logprobs": 0} if logprobs else {})
        return {
            "text_input": tensors["text_input"].reshape(1),
            "sampling_parameters": text(json.dumps(sampling)),
            "stream": flag(bool(values.get("stream"))),
            "exclude_input_in_output": flag(True),
            "return_finish_reason": flag(True),
            "return_logprobs": flag(logprobs),
            "return_cumulative_logprob": flag(logprobs),
            **{name: flag(bool(values[name])) for name in _PASSED_ON if name in values},
        }

    def tell(self, outputs: Tensors) -> Tensors:
        return dict(_OUTPUTS[name](tensor) for name, tensor in outputs.items() if name in _OUTPUTS)


def _check_is_served(values: Mapping[str, Any]) -> None:
    for name in _ONLY_ONE:
        if values.get(name, 1) != 1:
            raise InvalidArgumentError(f"{name} is {shown(values[name])}; only 1 is served")
    for name in _NEVER:
        if values.get(name):
            raise InvalidArgumentError(f"{name} is true; logits are not served")


def _sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {parameter: values[name] for name, parameter in _NUMBERS.items() if name in values}
    seeds = [values[name] for name in _SEEDS if name in values]
    if seeds:
        sampling["seed"] = _signed(seeds[0])
    return sampling | _end(values) | _choice(values)


def _choice(values: Mapping[str, Any]) -> dict[str, Any]:
    """0 is TensorRT-LLM's "not set". With neither top_k nor top_p set it takes the most likely token.

    So it does with a top_k of 1; here that is a temperature of 0, as the engine's top_k keeps equal logits.
    A negative temperature stays, to be refused.
    """
    top_k, top_p = values.get("top_k", 0), values.get("top_p", 0.0)
    if top_k == 1 or (top_k == 0 and top_p == 0):
        return {"temperature": min(values.get("temperature", 0), 0)}
    return {"top_k": top_k, "top_p": 1.0 if top_p == 0 else top_p}


def _end(values: Mapping[str, Any]) -> dict[str, Any]:
    """-1 is TensorRT-LLM's "no end token"; another id ends the output beside the model's own."""
    end_id = values.get("end_id")
    if end_id is None:
        return {}
    return {"ignore_eos": True} if end_id == -1 else {"stop_token_ids": [end_id]}


def _signed(seed: int) -> int:
    """The same 64 bits, as the engine takes them."""
    return seed if seed < 2**63 else seed - 2**64


def _words(tensors: Tensors) -> dict[str, list[str]]:
    """Clients send an empty string for none."""
    found = {}
    for name, parameter in _WORDS.items():
        words = [decoded(name, word) for word in tensors[name].flat if word] if name in tensors else []
        if words:
            found[parameter] = words
    return found


def _chosen(logprobs: Tensor) -> Tensor:
    """FP32[batch = 1, beams = 1, tokens], from the engine's JSON: an object a token, the chosen one first."""
    tokens = json.loads(logprobs.flat[0])
    return np.array([[[next(iter(token.values()))["logprob"] for token in tokens]]], dtype=np.float32)
