"""The vocabulary: a request, its sequence, how to sample, how it ended, and what comes out of it.

Integers and strings only; nothing here imports torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pagetide.constraint import Constraint
from pagetide.logit_edits import TokenMask
from pagetide.token_rules import (
    AllowedTokens,
    BadWords,
    LogitBias,
    MinTokens,
    Penalties,
    TokenRule,
)


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
    at random; a seeded result depends only on (seed, position). `logprobs` and `prompt_logprobs` are how
    many alternatives are reported per token, -1 all; None reports nothing. `logit_bias` holds pairs of
    token and bias; `bad_word_ids` are the spellings of `bad_words` in tokens (`parse_tokens.spell`).
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: TokenMask | None = None
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    @property
    def penalises(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token's log-probability and rank (1: none is likelier), and the most likely tokens, best first.

    `top` holds `(token_id, logprob)` pairs. All are of the model's own distribution, before temperature,
    filters, penalties and bans, as vLLM reports them.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStats:
    """What one request took so far. Times are `time.monotonic()` seconds; None: it never got there."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_prefix_hit_tokens: int
    num_preemptions: int
    arrival_s: float
    scheduled_s: float | None
    first_token_s: float | None
    finished_s: float


class Output(NamedTuple):
    """One message from the engine to a request's sender: new tokens, the end, or both.

    `logprobs` runs beside `token_ids` when the request asked for log-probabilities, else it is empty.
    `prompt_logprobs` are those of the prompt's next tokens, the second one's first; all come before or with
    the first output token.
    The last message of a request has a `finish_reason`; with `ERROR`, `error` says what happened. `stats`
    come with the first token and with the end.

    A tuple: each running sequence gets one a step, and a frozen dataclass takes three times as long to make.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    stats: RequestStats | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


Sink = Callable[[Output], None]
"""Where the engine thread leaves a request's outputs. It must return at once and never raise."""


@dataclass(slots=True, eq=False)
class Request:
    """One generation asked for by a client.

    Built by the adapter, owned by the engine thread from `Engine.submit` until its last output.
    `prompt_ids` is an `array("i")`; `arrival_s` is `time.monotonic()` when the server received it, and
    `timeout_s` counts from there: the request then ends with what it has. `tenant` shares the machine
    with other tenants fairly; `priority` (lower is earlier) orders the requests of one tenant only.
    `rules` are what the parameters do to the logits; empty for most. `stops` are the tokens that may end it.
    `constraint` is the grammar that the output must follow, and decides when an end token may come.
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
    constraint: Constraint | None = None
    rules: tuple[TokenRule, ...] = field(init=False)
    stops: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.rules = tuple(self._rules())
        ends = frozenset[int]() if self.params.ignore_eos else self.eos_token_ids
        self.stops = ends.union(self.params.stop_token_ids)

    def _rules(self) -> Iterator[TokenRule]:
        params = self.params
        if params.allowed_token_ids is not None:
            yield AllowedTokens(params.allowed_token_ids)
        if params.bad_word_ids:
            yield BadWords(params.bad_word_ids, len(self.prompt_ids))
        if params.min_tokens > 0 and self.constraint is None:
            stops = array("i", self.eos_token_ids.union(params.stop_token_ids))
            yield MinTokens(stops, len(self.prompt_ids) + params.min_tokens)
        if params.logit_bias:
            yield LogitBias(params.logit_bias)
        if params.penalises:
            yield Penalties(
                params.repetition_penalty, params.presence_penalty, params.frequency_penalty, self.prompt_ids
            )


@dataclass(slots=True, eq=False)
class Sequence:
    """One token list that grows: prompt + output. Owned by the scheduler, on the engine thread.

    `tokens[:num_computed]` have their KV in `block_table`; `block_hashes[i]` names the content of the
    first `i + 1` blocks' tokens, and the first `num_hit_blocks` of `block_table` were found, not computed.
    Preemption empties `block_table` and sets `num_computed` to 0; `num_charged` is the most that was before,
    so that its tenant is not charged twice. After `num_scored` tokens of the prompt the next one's
    log-probability is known.
    `num_unknown` is 1 while a step in flight samples the token after `tokens`, which counts already, else 0.
    `seed` (64 bits, unsigned) is the request's, or was drawn for it. Lower ids arrived earlier.
    """

    id: int
    request: Request
    tokens: array[int]
    seed: int
    status: Status = Status.WAITING
    num_computed: int = 0
    num_unknown: int = 0
    block_table: array[int] = field(default_factory=lambda: array("i"))
    block_hashes: list[bytes] = field(default_factory=list)
    num_hit_blocks: int = 0
    num_charged: int = 0
    num_scored: int = 0
    num_prefix_hit_tokens: int = 0
    num_preemptions: int = 0
    scheduled_s: float | None = None
    first_token_s: float | None = None

    @property
    def num_left(self) -> int:
        """Tokens whose KV is still to be computed before the next one can be sampled."""
        return self.num_tokens - self.num_computed

    @property
    def scores_prompt(self) -> bool:
        """Log-probabilities of its prompt are still to be computed, so it can't skip any of it."""
        asks = self.request.params.prompt_logprobs is not None
        return asks and self.num_scored < len(self.request.prompt_ids) - 1

    @property
    def is_stream(self) -> bool:
        """A client has its first tokens, and it waits for the next one only."""
        num_tokens = len(self.tokens) + self.num_unknown
        return num_tokens - self.num_computed == 1 and num_tokens > len(self.request.prompt_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + self.num_unknown

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - len(self.request.prompt_ids)

    @property
    def most_left(self) -> int:
        """Tokens it may still generate."""
        return self.request.params.max_tokens - self.num_output_tokens

    def finish_reason(self, token: int, max_model_len: int) -> tuple[FinishReason | None, int | None]:
        """Whether `token`, the last one, ends the sequence: the reason, and the stop token if it did."""
        request, num_tokens = self.request, len(self.tokens)
        params, num_output_tokens = request.params, num_tokens - len(request.prompt_ids)
        may_stop = num_output_tokens > params.min_tokens or request.constraint is not None
        if may_stop and token in request.stops:
            return FinishReason.STOP, token if token in params.stop_token_ids else None
        if num_tokens >= max_model_len or num_output_tokens >= params.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def will_be_full(self, max_model_len: int) -> bool:
        """With what a step in flight samples, it has all tokens that it may have."""
        num_tokens, most = len(self.tokens) + self.num_unknown, self.request.params.max_tokens
        return num_tokens >= max_model_len or num_tokens - len(self.request.prompt_ids) >= most

    def begin_output(self, now_s: float) -> RequestStats:
        """It has its first token."""
        self.first_token_s = now_s
        return self.stats(now_s)

    def stats(self, now_s: float) -> RequestStats:
        return RequestStats(
            num_prompt_tokens=len(self.request.prompt_ids),
            num_output_tokens=len(self.tokens) - len(self.request.prompt_ids),
            num_prefix_hit_tokens=self.num_prefix_hit_tokens,
            num_preemptions=self.num_preemptions,
            arrival_s=self.request.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            finished_s=now_s,
        )
