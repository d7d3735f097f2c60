"""What a client gets: the engine's outputs of one sample, gathered into replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pagetide.detokenizer import Decoder, Detokenizer, Text
from pagetide.parse import ParsedRequest
from pagetide.request import FinishReason, Output, RequestStats, SamplingParams, TokenLogprobs

Told = dict[int, dict[str, object]]
"""One token's log-probability and its alternatives', by token id, as the Triton vLLM backend shapes them."""


MOST_TOLD = 2000
"""Of an error message: some quote what a client sent, and gRPC refuses headers above 8 KiB."""


MOST_UNDECODED = 64
"""Tokens that wait to become text: those behind them on the same sender wait while they do."""


class ErrorCode(Enum):
    """How a request failed; the names are Triton's error codes."""

    INVALID_ARG = "the request is wrong"
    UNAVAILABLE = "the server can't take it now"
    CANCELLED = "the client gave up"
    INTERNAL = "the server is wrong"


@dataclass(frozen=True, slots=True)
class Failure:
    code: ErrorCode
    message: str

    def told(self, with_code: bool) -> str:
        """Cut to MOST_TOLD characters."""
        text = f"{self.code.name}: {self.message}" if with_code else self.message
        return text[:MOST_TOLD]

    @property
    def finish_reason(self) -> FinishReason:
        return FinishReason.CANCELLED if self.code is ErrorCode.CANCELLED else FinishReason.ERROR


Value = str | int | float | Sequence[int]


@dataclass(frozen=True, slots=True)
class Reply:
    """A sample's part of one response. `values` are the outputs asked for beside the text (docs/api.md).

    A sample's last reply has a `finish_reason`.
    """

    text: str
    finish_reason: FinishReason | None
    values: Mapping[str, Value]


class Answer:
    """One sample's text and numbers, growing. Owned by one sender thread.

    Ends with the engine's last output or at a stop string, whichever comes first; outputs after the end
    are ignored.
    """

    def __init__(
        self, parsed: ParsedRequest, prompt_ids: Sequence[int], decoder: Decoder, index: int = 0
    ) -> None:
        params = parsed.params
        self._params = params
        self._decoder = decoder
        self._prompt_ids = prompt_ids
        self._detokenizer = _detokenizer(params, prompt_ids, decoder)
        self._in_pieces = parsed.stream
        self._asked = tuple((name, _VALUES[name]) for name in parsed.returned)
        self._tells_logprobs = "logprobs" in parsed.returned and params.logprobs is not None
        self._tells_token_ids = "token_ids" in parsed.returned
        self._text = parsed.echo
        self._undecoded: list[int] = []
        self.index = index
        self.num_prompt_tokens = len(prompt_ids)
        self.num_tokens = 0
        self.token_ids: list[int] = []
        self.cumulative_logprob = 0.0
        self.logprobs: list[Told] | None = [] if self._tells_logprobs else None
        tells_prompt = "prompt_logprobs" in parsed.returned and params.prompt_logprobs is not None
        self._prompt_logprobs: list[str] | None = ["null"] if tells_prompt else None
        self.stop_reason: int | str | None = None
        self.stats: RequestStats | None = None
        self.finish_reason: FinishReason | None = None
        self.failure: Failure | None = None

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    def take(self, output: Output) -> None:
        if self.ended:
            return
        self.failure = _failure(output)
        if output.stats is not None:
            self.stats = output.stats
        self._add_prompt(output)
        if output.token_ids:
            self._add_tokens(output)
        if output.finish_reason is not None and not self.ended:
            self._end(output.finish_reason, output.stop_reason)

    def reply(self) -> Reply | None:
        """What has gathered, or None while there is nothing to show."""
        if self._in_pieces:
            self._decode()
        return self.gathered() if self.ended or (self._in_pieces and self._text) else None

    @property
    def prompt_logprobs(self) -> str:
        """Of the whole prompt, as JSON, until they are told."""
        scored = self._prompt_logprobs
        if scored is None or not (self.ended or len(scored) == self.num_prompt_tokens):
            return "null"
        return f"[{', '.join(scored)}]"

    def gathered(self) -> Reply:
        """What has gathered since the reply before, if only that nothing has."""
        self._decode()
        values = {name: value(self) for name, value in self._asked}
        reply = Reply(self._text, self.finish_reason, values)
        self._text, self.num_tokens, self.token_ids = "", 0, []
        self.logprobs = [] if self._tells_logprobs else None
        if values.get("prompt_logprobs", "null") != "null":
            self._prompt_logprobs = None
        return reply

    def _add_tokens(self, output: Output) -> None:
        hidden = self._hides_last(output)
        text = self._read(output.token_ids[:-1] if hidden else output.token_ids)
        count = len(output.token_ids) if text.stop is None else text.num_tokens
        self._text += text.delta
        self.num_tokens += count
        if self._tells_token_ids:
            self.token_ids.extend(output.token_ids[:count])
        for token_id, logprobs in zip(output.token_ids[:count], output.logprobs, strict=False):
            self._add_logprobs(token_id, logprobs)
        if text.stop is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, text.stop

    def _read(self, token_ids: Sequence[int]) -> Text:
        """At once where a stop string may end the text; else many together, when they are sent."""
        if self._params.stop:
            return self._detokenizer.feed(token_ids)
        self._undecoded += token_ids
        if len(self._undecoded) >= MOST_UNDECODED:
            self._decode()
        return Text("", len(token_ids))

    def _decode(self) -> None:
        if self._undecoded:
            self._text += self._detokenizer.feed(self._undecoded).delta
            self._undecoded = []

    def _hides_last(self, output: Output) -> bool:
        """The token that stops a sequence is no part of its text, unless the client wants it."""
        stopped = output.finish_reason is FinishReason.STOP and bool(output.token_ids)
        return stopped and not self._params.include_stop_str_in_output

    def _end(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        self._decode()
        rest = self._detokenizer.finish()
        self._text += rest.delta
        self.finish_reason = reason if rest.stop is None else FinishReason.STOP
        self.stop_reason = stop_reason if rest.stop is None else rest.stop

    def _add_logprobs(self, token_id: int, logprobs: TokenLogprobs) -> None:
        self.cumulative_logprob += logprobs.logprob
        if self.logprobs is not None:
            self.logprobs.append(self._told(token_id, logprobs))

    def _add_prompt(self, output: Output) -> None:
        """Kept as text: the objects would take several times as much."""
        if self._prompt_logprobs is not None:
            for logprobs in output.prompt_logprobs:
                token_id = self._prompt_ids[len(self._prompt_logprobs)]
                self._prompt_logprobs.append(json.dumps(self._told(token_id, logprobs)))

    def _told(self, token_id: int, logprobs: TokenLogprobs) -> Told:
        ranks = {token_id: logprobs.rank} | {each: rank for rank, (each, _) in enumerate(logprobs.top, 1)}
        told = {token_id: logprobs.logprob} | dict(logprobs.top)
        return {each: self._describe(each, value, ranks[each]) for each, value in told.items()}

    def _describe(self, token_id: int, logprob: float, rank: int) -> dict[str, object]:
        token = self._decoder.decode([token_id], skip_special_tokens=False)
        return {"logprob": logprob, "rank": rank, "decoded_token": token}


def _finish_reason(answer: Answer) -> str:
    """ "None" while it runs, as vLLM has it."""
    return answer.finish_reason.value if answer.finish_reason else "None"


def _num_cached_tokens(answer: Answer) -> int:
    return 0 if answer.stats is None else answer.stats.num_prefix_hit_tokens


def _queue_time_s(answer: Answer) -> float:
    stats = answer.stats
    if stats is None:
        return 0.0
    return (stats.finished_s if stats.scheduled_s is None else stats.scheduled_s) - stats.arrival_s


def _prefill_time_s(answer: Answer) -> float:
    stats = answer.stats
    if stats is None or stats.scheduled_s is None:
        return 0.0
    return (stats.finished_s if stats.first_token_s is None else stats.first_token_s) - stats.scheduled_s


_VALUES: Mapping[str, Callable[[Answer], Value]] = {
    "finish_reason": _finish_reason,
    "stop_reason": lambda answer: json.dumps(answer.stop_reason),
    "cumulative_logprob": lambda answer: answer.cumulative_logprob,
    "logprobs": lambda answer: json.dumps(answer.logprobs),
    "prompt_logprobs": lambda answer: answer.prompt_logprobs,
    "token_ids": lambda answer: answer.token_ids,
    "num_input_tokens": lambda answer: answer.num_prompt_tokens,
    "num_output_tokens": lambda answer: answer.num_tokens,
    "num_cached_tokens": _num_cached_tokens,
    "queue_time_s": _queue_time_s,
    "prefill_time_s": _prefill_time_s,
    "sample_index": lambda answer: answer.index,
}
"""Each output beside the text. Counts, ids and log-probabilities are of the tokens since the reply before."""


def _detokenizer(params: SamplingParams, prompt_ids: Sequence[int], decoder: Decoder) -> Detokenizer:
    return Detokenizer(
        decoder,
        prompt_ids,
        stops=params.stop,
        include_stop=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
        min_tokens=params.min_tokens,
    )


def _failure(output: Output) -> Failure | None:
    if output.finish_reason is FinishReason.ERROR:
        return Failure(ErrorCode.INTERNAL, output.error or "the engine failed")
    if output.finish_reason is FinishReason.CANCELLED:
        code = ErrorCode.UNAVAILABLE if output.error else ErrorCode.CANCELLED
        return Failure(code, output.error or "the request was cancelled")
    return None
