"""What comes back: deltas of a stream, the whole result, and what the server has loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    """What one response of a stream adds to one sample: the text and how many tokens it stands for.

    `logprobs` holds one entry per new token, each a tuple of candidates, the chosen one first; it is
    empty unless the request asked for `logprobs`. `cumulative_logprob` is the sum so far. `token_ids` and
    what follows are there if the request asked for `details`: see `Sample`.
    """

    text: str
    num_output_tokens: int
    num_input_tokens: int | None = None
    finish_reason: str | None = None
    cumulative_logprob: float | None = None
    logprobs: tuple[tuple[Logprob, ...], ...] = ()
    sample: int = 0
    stop_reason: int | str | None = None
    token_ids: tuple[int, ...] = ()
    num_cached_tokens: int | None = None
    queue_time_s: float | None = None
    prefill_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished completion. What follows `logprobs` is there if the request asked for `details`.

    `stop_reason` is the stop string or the stop token's id that ended it; `num_cached_tokens` of the prompt
    were found in the prefix cache. Times are the server's: until it ran, and from there to its first token.
    """

    text: str
    finish_reason: str
    num_output_tokens: int
    cumulative_logprob: float | None
    logprobs: tuple[tuple[Logprob, ...], ...]
    stop_reason: int | str | None
    token_ids: tuple[int, ...]
    num_cached_tokens: int | None
    queue_time_s: float | None
    prefill_time_s: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """A finished generation. `text` is the completion, without the prompt.

    `samples` are all of them, `n` or one. The fields that a `Sample` has too are the first one's, but for
    `num_output_tokens`, which counts all. `ttft_s` and `total_s` are measured by this client, from sending to
    the first and the last response.
    """

    text: str
    finish_reason: str
    num_input_tokens: int
    num_output_tokens: int
    cumulative_logprob: float | None
    logprobs: tuple[tuple[Logprob, ...], ...]
    ttft_s: float
    total_s: float
    samples: tuple[Sample, ...]

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
    deltas: list[list[Delta]] = field(default_factory=list)
    first_s: float = 0.0
    last_s: float = 0.0

    def take(self, deltas: Sequence[Delta]) -> list[Delta]:
        """One response's deltas, one for each sample; those that have something new."""
        self.last_s = time.monotonic()
        self.first_s = self.first_s or self.last_s
        self.deltas = self.deltas or [[] for _ in deltas]
        new = [delta for delta in deltas if self._is_new(delta)]
        for delta in new:
            self.deltas[delta.sample].append(delta)
        return new

    def check_finished(self, url: str) -> None:
        """Raises ServerError when the stream ended, well by gRPC's measure, before its last delta."""
        if not self._is_finished:
            raise ServerError(f"the server at {url} ended the stream before the request had finished")

    def result(self) -> Result:
        """Raises Cancelled unless the last delta, the one with a finish reason, has arrived."""
        if not self._is_finished:
            raise Cancelled("the stream has no result: it was left before its last delta")
        samples = tuple(_joined(deltas) for deltas in self.deltas)
        return Result(
            text=samples[0].text,
            finish_reason=samples[0].finish_reason,
            num_input_tokens=self.deltas[0][-1].num_input_tokens or 0,
            num_output_tokens=sum(sample.num_output_tokens for sample in samples),
            cumulative_logprob=samples[0].cumulative_logprob,
            logprobs=samples[0].logprobs,
            ttft_s=self.first_s - self.started_s,
            total_s=self.last_s - self.started_s,
            samples=samples,
        )

    @property
    def _is_finished(self) -> bool:
        return bool(self.deltas) and all(map(_has_ended, self.deltas))

    def _is_new(self, delta: Delta) -> bool:
        """Each response has an entry for each sample: also for those that wait, or have ended before."""
        has_news = delta.text or delta.num_output_tokens or delta.finish_reason
        return bool(has_news) and not _has_ended(self.deltas[delta.sample])


def _has_ended(deltas: Sequence[Delta]) -> bool:
    return bool(deltas) and deltas[-1].finish_reason is not None


def _joined(deltas: Sequence[Delta]) -> Sample:
    last = deltas[-1]
    return Sample(
        text="".join(delta.text for delta in deltas),
        finish_reason=last.finish_reason or "",
        num_output_tokens=sum(delta.num_output_tokens for delta in deltas),
        cumulative_logprob=last.cumulative_logprob,
        logprobs=tuple(token for delta in deltas for token in delta.logprobs),
        stop_reason=last.stop_reason,
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        num_cached_tokens=last.num_cached_tokens,
        queue_time_s=last.queue_time_s,
        prefill_time_s=last.prefill_time_s,
    )
