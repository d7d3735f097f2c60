"""The vocabulary: a request, its sequence, how to sample, how it ended, and what comes out of it.

Integers and strings only; nothing here imports torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


class FinishReason(str, Enum):
    """Why a sequence ended; the values are what clients see."""

    STOP = "stop"
    LENGTH = "length"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    ERROR = "error"


class Status(Enum):
    """Where a sequence is. A preempted one is WAITING again, with its tokens kept."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. Names, meanings and defaults are vLLM's.

    `temperature` 0 is greedy. `top_k` 0 or -1 and `top_p` 1 keep every token. `seed` None draws one
    at random; a seeded result depends only on (seed, position). `logprobs` is how many alternatives
    are reported per token; None reports none.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token's log-probability and the most likely `(token_id, logprob)` pairs, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStats:
    """What one finished request took. Times are `time.monotonic()` seconds; None: it never got there."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_prefix_hit_tokens: int
    num_preemptions: int
    arrival_s: float
    scheduled_s: float | None
    first_token_s: float | None
    finished_s: float


@dataclass(frozen=True, slots=True)
class Output:
    """One message from the engine to a request's sender: new tokens, the end, or both.

    `logprobs` runs beside `token_ids` when the request asked for log-probabilities, else it is empty.
    The last message of a request has a `finish_reason`; with `ERROR`, `error` says what happened.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    stats: RequestStats | None = None


Sink = Callable[[Output], None]
"""Where the engine thread leaves a request's outputs. It must return at once and never raise."""


@dataclass(slots=True, eq=False)
class Request:
    """One generation asked for by a client.

    Built by the adapter, owned by the engine thread from `Engine.submit` until its last output.
    `prompt_ids` is an `array("i")`; `arrival_s` is `time.monotonic()` when the server received it, and
    `timeout_s` counts from there: the request then ends with what it has. `tenant` shares the machine
    with other tenants fairly; `priority` (lower is earlier) orders the requests of one tenant only.
    Several samples of one prompt are several requests with different seeds: they share its blocks.
    """

    id: int
    prompt_ids: array[int]
    params: SamplingParams
    sink: Sink
    arrival_s: float
    eos_token_ids: frozenset[int] = frozenset()
    cache_salt: bytes = b""
    tenant: str = ""
    priority: int = 0
    timeout_s: float | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """One token list that grows: prompt + output. Owned by the scheduler, on the engine thread.

    `tokens[:num_computed]` have their KV in `block_table`; `block_hashes[i]` names the content of the
    first `i + 1` blocks' tokens, and the first `num_hit_blocks` of `block_table` were found, not computed.
    Preemption empties `block_table` and sets `num_computed` to 0; `num_charged` tokens have been counted
    for its tenant, so that none is counted twice.
    `seed` (64 bits, unsigned) is the request's, or was drawn for it. Lower ids arrived earlier.
    """

    id: int
    request: Request
    tokens: array[int]
    seed: int
    status: Status = Status.WAITING
    num_computed: int = 0
    block_table: array[int] = field(default_factory=lambda: array("i"))
    block_hashes: list[bytes] = field(default_factory=list)
    num_hit_blocks: int = 0
    num_charged: int = 0
    num_prefix_hit_tokens: int = 0
    num_preemptions: int = 0
    scheduled_s: float | None = None
    first_token_s: float | None = None

    @property
    def num_left(self) -> int:
        """Tokens whose KV is still to be computed before the next one can be sampled."""
        return len(self.tokens) - self.num_computed

    @property
    def is_stream(self) -> bool:
        """A client has its first tokens, and it waits for the next one only."""
        return self.num_left == 1 and self.num_output_tokens > 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def most_left(self) -> int:
        """Tokens it may still generate."""
        return self.request.params.max_tokens - self.num_output_tokens

    def finish_reason(self, token: int, max_model_len: int) -> tuple[FinishReason | None, int | None]:
        """Whether `token`, the last one, ends the sequence: the reason, and the stop token if it did."""
        params = self.request.params
        if self.num_output_tokens > params.min_tokens:
            if token in params.stop_token_ids:
                return FinishReason.STOP, token
            if token in self.request.eos_token_ids and not params.ignore_eos:
                return FinishReason.STOP, None
        if self.num_tokens >= max_model_len or self.num_output_tokens >= params.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def stats(self, now_s: float) -> RequestStats:
        return RequestStats(
            num_prompt_tokens=len(self.request.prompt_ids),
            num_output_tokens=self.num_output_tokens,
            num_prefix_hit_tokens=self.num_prefix_hit_tokens,
            num_preemptions=self.num_preemptions,
            arrival_s=self.request.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            finished_s=now_s,
        )
