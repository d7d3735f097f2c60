"""What a client gets: the engine's outputs of one request, gathered into replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pagetide.detokenizer import Decoder, Detokenizer
from pagetide.parse import ParsedRequest
from pagetide.request import FinishReason, Output, SamplingParams, TokenLogprobs

Told = dict[int, dict[str, object]]
"""One token's log-probability and its alternatives', by token id, as the Triton vLLM backend shapes them."""


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


@dataclass(frozen=True, slots=True)
class Reply:
    """One response. Counts and log-probabilities are of the tokens since the reply before.

    `logprobs` is a JSON list with an object per token, keyed by token id, or "null" if the request did
    not ask; `prompt_logprobs`, of the first reply only, is the same for the prompt, whose first token has
    null. `cumulative_logprob` runs over the whole output. The last reply has a `finish_reason`.
    """

    text: str
    num_prompt_tokens: int
    num_output_tokens: int
    cumulative_logprob: float
    logprobs: str
    prompt_logprobs: str
    finish_reason: FinishReason | None


class Answer:
    """One request's text and numbers, growing. Owned by one sender thread.

    Ends with the engine's last output or at a stop string, whichever comes first; outputs after the end
    are ignored.
    """

    def __init__(self, parsed: ParsedRequest, prompt_ids: Sequence[int], decoder: Decoder) -> None:
        params = parsed.params
        self._params = params
        self._decoder = decoder
        self._prompt_ids = prompt_ids
        self._detokenizer = _detokenizer(params, prompt_ids, decoder)
        self._in_pieces = parsed.stream
        self._tells_logprobs = "logprobs" in parsed.returned and params.logprobs is not None
        tells_prompt = "prompt_logprobs" in parsed.returned and params.prompt_logprobs is not None
        self._prompt_logprobs: list[Told | None] | None = [None] if tells_prompt else None
        self._text = parsed.echo
        self._num_tokens = 0
        self._cumulative_logprob = 0.0
        self._logprobs: list[Told] = []
        self.finish_reason: FinishReason | None = None
        self.failure: Failure | None = None

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    def take(self, output: Output) -> None:
        if self.ended:
            return
        self.failure = _failure(output)
        self._add_prompt(output)
        if output.token_ids:
            self._add_tokens(output)
        if output.finish_reason is not None and not self.ended:
            self._end(output.finish_reason)

    def reply(self) -> Reply | None:
        """What has gathered, or None while there is nothing to show."""
        if not self.ended and not (self._in_pieces and self._text):
            return None
        reply = Reply(
            text=self._text,
            num_prompt_tokens=len(self._prompt_ids),
            num_output_tokens=self._num_tokens,
            cumulative_logprob=self._cumulative_logprob,
            logprobs=json.dumps(self._logprobs) if self._tells_logprobs else "null",
            prompt_logprobs=json.dumps(self._prompt_logprobs),
            finish_reason=self.finish_reason,
        )
        self._text, self._num_tokens, self._logprobs, self._prompt_logprobs = "", 0, [], None
        return reply

    def _add_tokens(self, output: Output) -> None:
        hidden = self._hides_last(output)
        text = self._detokenizer.feed(output.token_ids[:-1] if hidden else output.token_ids)
        count = len(output.token_ids) if text.stop is None else text.num_tokens
        self._text += text.delta
        self._num_tokens += count
        for token_id, logprobs in zip(output.token_ids[:count], output.logprobs, strict=False):
            self._add_logprobs(token_id, logprobs)
        if text.stop is not None:
            self.finish_reason = FinishReason.STOP

    def _hides_last(self, output: Output) -> bool:
        """The token that stops a sequence is no part of its text, unless the client wants it."""
        stopped = output.finish_reason is FinishReason.STOP and bool(output.token_ids)
        return stopped and not self._params.include_stop_str_in_output

    def _end(self, reason: FinishReason) -> None:
        rest = self._detokenizer.finish()
        self._text += rest.delta
        self.finish_reason = reason if rest.stop is None else FinishReason.STOP

    def _add_logprobs(self, token_id: int, logprobs: TokenLogprobs) -> None:
        self._cumulative_logprob += logprobs.logprob
        if self._tells_logprobs:
            self._logprobs.append(self._told(token_id, logprobs))

    def _add_prompt(self, output: Output) -> None:
        if self._prompt_logprobs is not None:
            for logprobs in output.prompt_logprobs:
                token_id = self._prompt_ids[len(self._prompt_logprobs)]
                self._prompt_logprobs.append(self._told(token_id, logprobs))

    def _told(self, token_id: int, logprobs: TokenLogprobs) -> Told:
        ranks = {token_id: logprobs.rank} | {each: rank for rank, (each, _) in enumerate(logprobs.top, 1)}
        told = {token_id: logprobs.logprob} | dict(logprobs.top)
        return {each: self._describe(each, value, ranks[each]) for each, value in told.items()}

    def _describe(self, token_id: int, logprob: float, rank: int) -> dict[str, object]:
        token = self._decoder.decode([token_id], skip_special_tokens=False)
        return {"logprob": logprob, "rank": rank, "decoded_token": token}


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
