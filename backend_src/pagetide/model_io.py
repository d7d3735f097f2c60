"""The inputs and outputs that Triton's configuration lists: what a client may send and get (docs/api.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spec:
    """An input or an output: its name, Triton's type without `TYPE_`, and its shape, -1 being any length."""

    name: str
    data_type: str
    dims: tuple[int, ...] = (1,)


TEXT = Spec("text_output", "STRING", (-1,))
TOKEN_IDS = Spec("token_ids", "INT32", (-1,))
FINISH_REASON = Spec("finish_reason", "STRING", (-1,))
OUTPUTS: tuple[Spec, ...] = (
    TEXT,
    FINISH_REASON,
    Spec("stop_reason", "STRING", (-1,)),
    Spec("cumulative_logprob", "FP32", (-1,)),
    Spec("logprobs", "STRING", (-1,)),
    Spec("prompt_logprobs", "STRING"),
    TOKEN_IDS,
    Spec("num_input_tokens", "UINT32"),
    Spec("num_output_tokens", "UINT32", (-1,)),
    Spec("num_cached_tokens", "UINT32", (-1,)),
    Spec("queue_time_s", "FP32", (-1,)),
    Spec("prefill_time_s", "FP32", (-1,)),
    Spec("sample_index", "UINT32", (-1,)),
)
"""Each has an entry for each sample, but for those of the prompt, which is the same for all, and `token_ids`,
where the samples' ids stand one after the other, as many of each as `num_output_tokens` says."""

RETURNED = tuple(spec.name for spec in OUTPUTS if spec is not TEXT)
"""Outputs that a client gets beside the text if it sets `return_<name>`."""

OPTIONS = ("stream", "exclude_input_in_output", *(f"return_{name}" for name in RETURNED))
"""The boolean inputs. A request parameter of the same name counts where the tensor is missing."""

PARAMETERS: tuple[tuple[Spec, str], ...] = (
    (Spec("max_tokens", "INT32"), "max_tokens"),
    (Spec("min_tokens", "INT32"), "min_tokens"),
    (Spec("min_length", "INT32"), "min_tokens"),
    (Spec("temperature", "FP32"), "temperature"),
    (Spec("top_k", "INT32"), "top_k"),
    (Spec("top_p", "FP32"), "top_p"),
    (Spec("min_p", "FP32"), "min_p"),
    (Spec("seed", "INT64"), "seed"),
    (Spec("random_seed", "UINT64"), "seed"),
    (Spec("repetition_penalty", "FP32"), "repetition_penalty"),
    (Spec("presence_penalty", "FP32"), "presence_penalty"),
    (Spec("frequency_penalty", "FP32"), "frequency_penalty"),
    (Spec("stop", "STRING", (-1,)), "stop"),
    (Spec("stop_words", "STRING", (-1,)), "stop"),
    (Spec("stop_token_ids", "INT32", (-1,)), "stop_token_ids"),
    (Spec("bad_words", "STRING", (-1,)), "bad_words"),
    (Spec("timeout_s", "FP32"), "timeout_s"),
)
"""Sampling parameters as inputs of their own, each with the parameter that it sets.

The names are vLLM's and those of TensorRT-LLM's Triton models, whose clients send such tensors. Over HTTP's
`/generate`, Triton takes lists and fractions only as inputs.
"""

STATISTICS = "statistics"
"""Asks for the engine's state instead of text, and comes alone."""

PROMPTS = ("text_input", "messages", "input_ids")
"""The inputs of which a request has exactly one."""

INPUTS: tuple[Spec, ...] = (
    Spec("text_input", "STRING"),
    Spec("messages", "STRING"),
    Spec("input_ids", "INT32", (-1,)),
    Spec("tools", "STRING"),
    Spec("sampling_parameters", "STRING"),
    *(Spec(name, "BOOL") for name in OPTIONS),
    *(spec for spec, _ in PARAMETERS),
    Spec(STATISTICS, "BOOL"),
)
"""All of them may be left out, as far as Triton knows."""
