"""Settings of one model version: frozen, validated once, unknown keys refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

BLOCK_SIZE = 16
"""Tokens in one block. The kernels' KV layout is built on it."""

DEVICES = ("auto", "cpu", "cuda", "sim")
DTYPES = ("auto", "bfloat16", "float32")
QUANTIZATIONS = ("none", "int8", "int4", "gguf")
KV_CACHE_DTYPES = ("auto", "fp8_e4m3", "int8")

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}

_AT_LEAST_ONE = (
    "kv_cache_bytes",
    "max_step_tokens",
    "max_running",
    "max_waiting",
    "max_waiting_tokens",
    "max_request_bytes",
    "max_prompt_bytes",
    "max_prompt_tokens",
    "max_output_tokens",
    "max_n",
    "max_grammar_bytes",
    "num_senders",
)


class SettingsError(ValueError):
    """A setting is unknown, has the wrong type, or is out of its range; the message names all three."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a model version is served with.

    `model` is a directory, a GGUF file, or a package reference `package:file` resolved at load.
    `quantization` makes small integers of the weights on a CPU, "gguf" of those that a GGUF file stores so.
    `kv_cache_dtype` halves what a cached token takes: "fp8_e4m3" on a GPU, "int8" on a CPU; "auto" keeps
    the weights' dtype.
    `kv_cache_bytes` bounds the KV cache: it is claimed at start and never grows. So does `host_cache_bytes`
    the host tier, which keeps evicted blocks in main memory; 0 keeps none.
    `max_model_len` None takes what the checkpoint was trained for. `num_threads` 0 takes every core.
    `tenants` gives shares and limits by name (`tenant_policy.parse_policies`). `tenant_header` is the
    forwarded header that says whose a request is; "" lets requests say it. One step of priority is worth
    `priority_ageing_s` of waiting; no sequence is preempted more than `max_preemptions` times.
    Streams together get at most `max_responses_per_s` responses, not counting first tokens and ends: beyond
    that, a stream's tokens are merged; 0 chooses by device.
    At most `max_waiting` requests wait, with at most `max_waiting_tokens` tokens of prompts (None: no limit).
    A request is refused beyond `max_request_bytes` in all, `max_prompt_bytes` of text, `max_prompt_tokens`,
    `max_output_tokens` asked for (None: what `max_model_len` leaves), `max_n` samples and `max_logprobs`
    (-1: no limit).
    `target_itl_ms` is what streams should wait between tokens at most; `offline` wants throughput only.
    `overlap` plans each step while the one before it runs (docs/gpu.md); None does on a GPU. There, decode
    steps of up to `max_graph_rows` sequences run as CUDA graphs; 0: none does.
    `deterministic` keeps to linears that give a row the same bits in any batch, where others are faster.
    A grammar has at most `max_grammar_bytes` and compiles within `max_grammar_s` seconds; those compiled last
    stay, within `grammar_cache_bytes`.
    """

    model: str = "."
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    kv_cache_bytes: int = 512 * 2**20
    host_cache_bytes: int = 0
    max_step_tokens: int = 1024
    max_running: int = 64
    max_waiting: int = 4096
    max_waiting_tokens: int | None = None
    max_model_len: int | None = None
    max_request_bytes: int = 16 * 2**20
    max_prompt_bytes: int = 4 * 2**20
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    max_n: int = 16
    max_logprobs: int = 20
    prefix_cache: bool = True
    tenants: Mapping[str, Any] = field(default_factory=dict)
    tenant_header: str = ""
    priority_ageing_s: float = 10.0
    max_preemptions: int = 3
    target_itl_ms: float | None = None
    offline: bool = False
    overlap: bool | None = None
    max_graph_rows: int = 256
    deterministic: bool = False
    max_grammar_bytes: int = 64 * 2**10
    max_grammar_s: float = 5.0
    grammar_cache_bytes: int = 64 * 2**20
    num_threads: int = 0
    num_senders: int = 2
    max_responses_per_s: int = 0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Settings:
        """Raises SettingsError on an unknown key, a wrong type, or a value out of range."""
        known = {f.name: str(f.type) for f in fields(cls)}
        for key in values:
            if key not in known:
                raise SettingsError(f"unknown setting {key!r}; known: {', '.join(sorted(known))}")
        return cls(**{key: _convert(key, known[key], value) for key, value in values.items()})

    def __post_init__(self) -> None:
        _one_of("device", self.device, DEVICES)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("quantization", self.quantization, QUANTIZATIONS)
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        for name in _AT_LEAST_ONE:
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        _at_least("max_logprobs", self.max_logprobs, -1)
        _at_least("num_threads", self.num_threads, 0)
        _at_least("max_graph_rows", self.max_graph_rows, 0)
        _at_least("host_cache_bytes", self.host_cache_bytes, 0)
        _at_least("grammar_cache_bytes", self.grammar_cache_bytes, 0)
        _above_zero("max_grammar_s", self.max_grammar_s)
        _at_least("max_preemptions", self.max_preemptions, 0)
        _above_zero("priority_ageing_s", self.priority_ageing_s)
        if self.target_itl_ms is not None:
            _above_zero("target_itl_ms", self.target_itl_ms)
        _at_least("max_responses_per_s", self.max_responses_per_s, 0)
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)


def parse_bytes(name: str, value: int | str) -> int:
    """`536870912`, `"512MiB"` and `"0.5 GiB"` are the same number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    if match is None or match[2] not in _UNITS:
        raise SettingsError(f"{name} is {value!r}; give bytes or a size such as '512MiB'")
    return int(float(match[1]) * _UNITS[match[2]])


def _convert(name: str, annotation: str, value: Any) -> Any:
    if name.endswith("_bytes"):
        return parse_bytes(name, value)
    if annotation == "str":
        return _text(name, value)
    if annotation.startswith("Mapping"):
        return _object(name, value)
    if value is None and "None" in annotation:
        return None
    if annotation.startswith("bool"):
        return _boolean(name, value)
    return _number(name, value) if annotation.startswith("float") else _integer(name, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{name} is {value!r}; it must be a string")
    return value


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r}; it must be true or false")
    return value


def _integer(name: str, value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value.strip()):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(f"{name} is {value!r}; it must be a whole number")
    return value


def _number(name: str, value: Any) -> float:
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise SettingsError(f"{name} is {value!r}; it must be a finite number")
    return number


def _object(name: str, value: Any) -> Mapping[str, Any]:
    """A JSON object, or its text: `config.pbtxt` has only strings."""
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        parsed = None
    if not isinstance(parsed, Mapping):
        raise SettingsError(f"{name} is {value!r}; it must be a JSON object")
    return parsed


def _above_zero(name: str, value: float) -> None:
    if value <= 0:
        raise SettingsError(f"{name} is {value}; it must be above 0")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise SettingsError(f"{name} is {value}; it must be at least {least}")
