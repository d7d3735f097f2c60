"""What one request may ask of a model version, as its settings say."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagetide.config import Settings
from pagetide.parse_values import InvalidArgumentError, integer
from pagetide.request import SamplingParams

MOST_BYTES_A_TOKEN = 32
"""A prompt with more bytes than this for each token of `max_model_len` is refused before it is tokenised:
text has about 4, deeply indented code 10."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """`max_model_len` counts prompt + output tokens; the others are the settings of their names."""

    max_prompt_bytes: int
    max_model_len: int
    vocab_size: int
    max_request_bytes: int
    max_prompt_tokens: int
    max_output_tokens: int
    max_n: int
    max_logprobs: int
    max_grammar_bytes: int
    tenant_header: str = ""

    @classmethod
    def of(cls, settings: Settings, max_model_len: int, vocab_size: int) -> RequestLimits:
        return cls(
            max_prompt_bytes=min(settings.max_prompt_bytes, max_model_len * MOST_BYTES_A_TOKEN),
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            max_request_bytes=settings.max_request_bytes,
            max_prompt_tokens=settings.max_prompt_tokens or max_model_len,
            max_output_tokens=settings.max_output_tokens or max_model_len,
            max_n=settings.max_n,
            max_logprobs=settings.max_logprobs,
            max_grammar_bytes=settings.max_grammar_bytes,
            tenant_header=settings.tenant_header,
        )

    def check_bytes(self, num_bytes: int) -> None:
        """Raises InvalidArgumentError if the request's inputs and parameters hold more."""
        if num_bytes > self.max_request_bytes:
            raise InvalidArgumentError(
                f"the request has {num_bytes} bytes; it must have at most {self.max_request_bytes}"
            )

    def take_n(self, asked: dict[str, Any]) -> int:
        """Takes `n`, how many samples the request wants, out of `asked`. Raises InvalidArgumentError."""
        value = asked.pop("n", None)
        return 1 if value is None else int(integer(1, self.max_n)("n", value))

    def check_params(self, params: SamplingParams, asked: Mapping[str, Any]) -> SamplingParams:
        """`params`, its default of `max_tokens` within the limit. Raises InvalidArgumentError."""
        if asked.get("max_tokens") is None:
            params = replace(params, max_tokens=min(params.max_tokens, self.max_output_tokens))
        _at_most("max_tokens", params.max_tokens, self.max_output_tokens)
        _at_most("min_tokens", params.min_tokens, self.max_output_tokens)
        self._check_alternatives("logprobs", params.logprobs)
        self._check_alternatives("prompt_logprobs", params.prompt_logprobs)
        return params

    def _check_alternatives(self, name: str, count: int | None) -> None:
        """-1 asks for the whole vocabulary, and as a limit allows it."""
        asked = self.vocab_size if count == -1 else count or 0
        if asked > self.max_logprobs >= 0:
            told = f"-1, all {self.vocab_size} tokens" if count == -1 else f"{count}"
            raise InvalidArgumentError(f"{name} is {told}; this model serves at most {self.max_logprobs}")

    def truncate(self, prompt_ids: array[int], params: SamplingParams) -> array[int]:
        """The last `truncate_prompt_tokens`; -1 keeps what leaves room for `max_tokens`, as vLLM does."""
        most = params.truncate_prompt_tokens
        if most is None:
            return prompt_ids
        return prompt_ids[-(most if most > 0 else max(1, self.max_model_len - params.max_tokens)) :]

    def fit(self, source: str, num_prompt_tokens: int, params: SamplingParams) -> SamplingParams:
        """`params` with `max_tokens` cut to what the model's length leaves after the prompt, as vLLM does.

        Raises InvalidArgumentError if the prompt, which came as the input `source`, is too long, or leaves
        no room for `min_tokens`.
        """
        most = min(self.max_prompt_tokens, self.max_model_len - 1)
        if num_prompt_tokens == 0:
            raise InvalidArgumentError(f"{source} has no tokens; it must have at least 1")
        if num_prompt_tokens > most:
            raise InvalidArgumentError(
                f"{source} has {num_prompt_tokens} tokens; it must have at most {most}{self._why(most)}"
            )
        room = self.max_model_len - num_prompt_tokens
        if params.min_tokens > room:
            raise InvalidArgumentError(
                f"min_tokens is {params.min_tokens}; after a prompt of {num_prompt_tokens} tokens "
                f"at most {room} are left of {self.max_model_len}"
            )
        return replace(params, max_tokens=min(params.max_tokens, room))

    def _why(self, most: int) -> str:
        if most == self.max_prompt_tokens:
            return ""
        return f", as prompt and output together take at most {self.max_model_len}"


def _at_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise InvalidArgumentError(f"{name} is {value}; this model serves at most {most}")
