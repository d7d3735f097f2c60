"""What a caller may set: sampling parameters, timeouts, the server's address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from pagetide_client.errors import Timeout

DEFAULT_URL = "127.0.0.1:8001"
DEFAULT_PORT = 8001
DEFAULT_MODEL = "smollm2"

Message = Mapping[str, Any]
"""One chat message, `{"role": "user", "content": "..."}`."""

Tool = Mapping[str, Any]
"""A tool the model may call, `{"type": "function", "function": {"name": "...", "parameters": {...}}}`."""

Prompt = str | Sequence[Message] | Sequence[int]
"""Text to complete, chat messages that the server renders with the model's chat template, or token ids."""


class Sampling(TypedDict, total=False):
    """Sampling parameters; what is left out takes the server's default. Names and meanings are vLLM's.

    `n` samples of one prompt come side by side, each as its seed, `seed` plus its index, would give it alone.
    The last four say how to schedule the request: whose it is (tenants share the machine fairly), lower
    `priority` first among a tenant's own, the longest it may take, and who may share its cached prefix.
    """

    n: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: str | Sequence[str]
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    truncate_prompt_tokens: int | None
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    tenant: str
    priority: int
    timeout_s: float
    cache_salt: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `model` None is the client's own; `details` asks for what costs extra (`Sample`)."""

    prompt: Prompt
    stream: bool
    model: str | None
    version: str
    request_id: str
    tools: Sequence[Tool] | None
    details: bool
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds a caller is ready to wait; None waits for ever.

    `connect_s` bounds reaching the server, `first_token_s` the time from sending a request to its first
    response, `total_s` the whole request. A request that runs out of time is cancelled on the server.
    """

    connect_s: float = 5.0
    first_token_s: float | None = None
    total_s: float | None = None

    def first_token_passed(self) -> Timeout:
        return Timeout(f"no token within first_token_s = {self.first_token_s:g} s")

    def total_passed(self) -> Timeout:
        return Timeout(f"not finished within total_s = {self.total_s:g} s")


def address(url: str) -> str:
    """`host`, `host:port` and `grpc://host:port` as the `host:port` gRPC takes."""
    host = url.removeprefix("grpc://").rstrip("/")
    if "://" in host or not host:
        raise ValueError(f"url is {url!r}; give host:port of the server's gRPC port, such as {DEFAULT_URL!r}")
    bare = host.rpartition("]")[2] if host.startswith("[") else host
    return host if ":" in bare else f"{host}:{DEFAULT_PORT}"
