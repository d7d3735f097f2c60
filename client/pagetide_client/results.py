"""What comes back: deltas of a stream, the whole result, and what the server has loaded."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pagetide_client.errors import Cancelled, ServerError


@dataclass(frozen=True, slots=True)
class Logprob:
    """One candidate for a token; `rank` 1 is the most likely one."""

    token_id: int
    logprob: float
    rank: int | None
    token: str | None


@dataclass(frozen=True, slots=True)
class Delta:
    """What one response of a stream adds: the text and how many tokens it stands for.

    `logprobs` holds one entry per new token, each a tuple of candidates, the chosen one first; it is
    empty unless the request asked for `logprobs`. `cumulative_logprob` is the sum so far.
    """

    text: str
    num_output_tokens: int
    num_input_tokens: int | None = None
    finish_reason: str | None = None
    cumulative_logprob: float | None = None
    logprobs: tuple[tuple[Logprob, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A finished generation. `text` is the completion, without the prompt.

    `ttft_s` and `total_s` are measured by this client, from sending to the first and the last response.
    """

    text: str
    finish_reason: str
    num_input_tokens: int
    num_output_tokens: int
    cumulative_logprob: float | None
    logprobs: tuple[tuple[Logprob, ...], ...]
    ttft_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second after the first response; over the whole time if there was only one."""
        decode_s = self.total_s - self.ttft_s
        if decode_s <= 0 or self.num_output_tokens < 2:
            return self.num_output_tokens / self.total_s
        return (self.num_output_tokens - 1) / decode_s


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One entry of the server's repository: `state` is Triton's, `reason` says why it is not READY."""

    name: str
    version: str
    state: str
    reason: str

    @property
    def ready(self) -> bool:
        return self.state == "READY"


@dataclass(slots=True)
class Collector:
    """Joins a stream's deltas into its `Result`."""

    started_s: float = field(default_factory=time.monotonic)
    deltas: list[Delta] = field(default_factory=list)
    first_s: float = 0.0
    last_s: float = 0.0

    def add(self, delta: Delta) -> None:
        self.last_s = time.monotonic()
        self.first_s = self.first_s or self.last_s
        self.deltas.append(delta)

    def check_finished(self, url: str) -> None:
        """Raises ServerError when the stream ended, well by gRPC's measure, before its last delta."""
        if self._finish_reason is None:
            raise ServerError(f"the server at {url} ended the stream before the request had finished")

    def result(self) -> Result:
        """Raises Cancelled unless the last delta, the one with a finish reason, has arrived."""
        if self._finish_reason is None:
            raise Cancelled("the stream has no result: it was left before its last delta")
        return Result(
            text="".join(delta.text for delta in self.deltas),
            finish_reason=self._finish_reason,
            num_input_tokens=max(delta.num_input_tokens or 0 for delta in self.deltas),
            num_output_tokens=sum(delta.num_output_tokens for delta in self.deltas),
            cumulative_logprob=self.deltas[-1].cumulative_logprob,
            logprobs=tuple(token for delta in self.deltas for token in delta.logprobs),
            ttft_s=self.first_s - self.started_s,
            total_s=self.last_s - self.started_s,
        )

    @property
    def _finish_reason(self) -> str | None:
        return self.deltas[-1].finish_reason if self.deltas else None
