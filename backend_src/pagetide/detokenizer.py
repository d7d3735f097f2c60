"""Tokens to text, a few at a time: characters are never broken and stop strings never leak.

The text released for a sequence is the same however its tokens were grouped, so a stream's deltas join
to the text of the same request not streamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no character, or not one yet."""

CONTEXT_TOKENS = 6
"""Prompt tokens decoded before the output, so that a leading space survives."""

MAX_INCOMPLETE = 3
"""Bytes a character may lack its end by, and so the most trailing replacements worth waiting for."""

MAX_WINDOW = 64
"""Tokens decoded at once before noise that never forms a character is let go."""


class Decoder(Protocol):
    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...


class TextStream:
    """Decodes a growing token list in small windows, so each token is decoded a bounded number of times.

    A window starts at a character's border and holds the tokens since the last border but one; text that
    ends in an incomplete character waits for the tokens that complete it.
    """

    def __init__(self, decoder: Decoder, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._decoder = decoder
        self._skip = skip_special_tokens
        self._window = list(prompt_ids[-CONTEXT_TOKENS:])
        self._border = len(self._window)
        self._released = len(self._decode(self._window))

    def feed(self, token_ids: Sequence[int]) -> str:
        """Returns the characters these tokens completed."""
        window = [*self._window, *token_ids]
        text = self._decode(window)
        if len(token_ids) > 1 and REPLACEMENT in text[self._released :]:
            return "".join(self.feed((token_id,)) for token_id in token_ids)
        self._window = window
        return self._release(text)

    def _release(self, text: str) -> str:
        """`text` is the window's."""
        waiting = len(text) - len(text.rstrip(REPLACEMENT))
        is_noise = waiting > MAX_INCOMPLETE and len(self._window) > MAX_WINDOW
        waiting = MAX_INCOMPLETE if is_noise else waiting
        start, self._released = self._released, max(len(text) - waiting, self._released)
        delta = text[start : self._released]
        if waiting == 0:
            self._start_window_at(self._border, waiting)
        elif is_noise:
            self._start_window_at(len(self._window) - MAX_WINDOW // 2, waiting)
        return delta

    def finish(self) -> str:
        """Returns what still waits: bytes that never became a character, as replacement characters."""
        return self._decode(self._window)[self._released :]

    def _start_window_at(self, index: int, waiting: int) -> None:
        del self._window[:index]
        self._border = len(self._window)
        self._released = len(self._decode(self._window)) - waiting

    def _decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=self._skip) if ids else ""


class UnspacedSpecials:
    """A text stream without what the decoder puts between two special tokens, as vLLM takes it away."""

    def __init__(self, decoder: Decoder, stream: TextStream) -> None:
        self._decoder = decoder
        self._stream = stream
        self._after_special = False

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(self._feed_one(token_id) for token_id in token_ids)

    def finish(self) -> str:
        return self._stream.finish()

    def _feed_one(self, token_id: int) -> str:
        text = self._stream.feed((token_id,))
        is_special = not self._decoder.decode((token_id,), skip_special_tokens=True)
        if is_special and self._after_special:
            text = self._decoder.decode((token_id,), skip_special_tokens=False)
        self._after_special = is_special
        return text


class StopMatcher:
    """Finds the stop string that is complete first, and holds back what may be the start of one."""

    def __init__(self, stops: Sequence[str], include_stop: bool) -> None:
        self._stops = stops
        self._include = include_stop
        self._held = ""

    def feed(self, delta: str) -> tuple[str, str | None]:
        """Returns the text that is safe to release, and the stop string if one is complete."""
        text = self._held + delta
        match = min(
            ((text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text),
            default=None,
        )
        if match is None:
            keep = max((_overlap(text, stop) for stop in self._stops), default=0)
            self._held = text[len(text) - keep :]
            return text[: len(text) - keep], None
        end, _, stop = match
        self._held = ""
        return text[: end if self._include else end - len(stop)], stop

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest proper prefix of `stop` that `text` ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


@dataclass(frozen=True, slots=True)
class Text:
    """What `num_tokens` tokens added; `stop` is the stop string that ended the text, if one did."""

    delta: str
    num_tokens: int
    stop: str | None = None


class Detokenizer:
    """One sequence's text. Owned by one sender thread.

    Stop strings are looked for in the text of the tokens after the first `min_tokens`; the token that
    completes one is the last that counts.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_ids: Sequence[int],
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        stream = TextStream(decoder, prompt_ids, skip_special_tokens)
        unspaced = not (skip_special_tokens or spaces_between_special_tokens)
        self._stream = UnspacedSpecials(decoder, stream) if unspaced else stream
        self._matcher = StopMatcher(stops, include_stop) if stops else None
        self._num_unchecked = min_tokens

    def feed(self, token_ids: Sequence[int]) -> Text:
        """Adds tokens; those behind a complete stop string are dropped."""
        if self._matcher is None:
            return Text(self._stream.feed(token_ids), len(token_ids))
        released = []
        for count, token_id in enumerate(token_ids, 1):
            text, stop = self._check(self._matcher, self._stream.feed((token_id,)))
            released.append(text)
            if stop is not None:
                return Text("".join(released), count, stop)
        return Text("".join(released), len(token_ids))

    def finish(self) -> Text:
        """Releases what was held back; it may still complete a stop string."""
        rest = self._stream.finish()
        if self._matcher is None:
            return Text(rest, 0)
        text, stop = self._matcher.feed(rest)
        return Text(text + self._matcher.finish(), 0, stop)

    def _check(self, matcher: StopMatcher, delta: str) -> tuple[str, str | None]:
        if self._num_unchecked > 0:
            self._num_unchecked -= 1
            return delta, None
        return matcher.feed(delta)
