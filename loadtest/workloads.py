"""What clients ask: prompts of drawn lengths, conversations with a shared beginning, numbers of tokens.

No tokenizer is needed: prompts are built from short, common English words, each of which is one token (with
the space before it) in the byte-pair vocabularies of today's models. What the server counted is in the
report beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

_TEXT = """
the of and to in is that for it as was with be by on not he this are or his from at which but have an had
they you were there one all we can her has their been if more when will would who so no said what up its
about into than them only some time could these two may then do first any my now such like our over man me
even most made after also did many before must through back years where much your way well down should
because each just those people how too little state good very make world still own see men work long get
here between both life being under never day same another know while last might us great old year off come
since against go came right used take three
"""
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class Prompt:
    """One request to send. `cancel_after` tokens the client hangs up; 0 is before the first, None never."""

    workload: str
    text: str
    max_tokens: int
    cancel_after: int | None = None


@dataclass(frozen=True)
class LogNormal:
    """Lengths in tokens: log-normal with this median and spread, kept within [low, high]."""

    median: float
    sigma: float
    low: int
    high: int

    def draw(self, rng: Random) -> int:
        return min(self.high, max(self.low, round(rng.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True)
class Lengths:
    """How long the prompts and the outputs of a workload are."""

    prompt: LogNormal
    output: LogNormal

    def capped(self, max_prompt: int, max_output: int) -> Lengths:
        return Lengths(
            replace(self.prompt, high=min(max_prompt, self.prompt.high)),
            replace(self.output, high=min(max_output, self.output.high)),
        )


# Means near those of the data sets in the PagedAttention paper (Kwon et al. 2023, section 6.1): ShareGPT
# 161 in and 338 out, Alpaca 19 in and 58 out.
LENGTHS = {
    "sharegpt": Lengths(LogNormal(60, 1.4, 4, 4096), LogNormal(205, 1.0, 4, 2048)),
    "alpaca": Lengths(LogNormal(16, 0.6, 4, 512), LogNormal(40, 0.85, 4, 1024)),
    "long": Lengths(LogNormal(2000, 0.4, 512, 16384), LogNormal(32, 0.5, 4, 256)),
}


def words(rng: Random, count: int) -> str:
    """`count` words, so about `count` tokens."""
    return " ".join(rng.choices(WORDS, k=count))


def completion(workload: str, lengths: Lengths, rng: Random) -> Prompt:
    text = words(rng, lengths.prompt.draw(rng))
    return Prompt(workload, text, lengths.output.draw(rng))


def cancelled(prompt: Prompt, rng: Random) -> Prompt:
    """The same request, hung up on: one in four before its first token, the others along the way."""
    after = 0 if rng.random() < 0.25 else rng.randrange(1, max(2, prompt.max_tokens))
    return replace(prompt, workload="cancels", cancel_after=after)


class Conversation:
    """A chat: every turn sends all that was said, so each prompt begins with the one before it.

    All conversations begin with the same instructions of `system_tokens` words. `max_prompt` ends one.
    """

    def __init__(self, rng: Random, system_tokens: int, lengths: Lengths, max_prompt: int) -> None:
        self._rng = rng
        self._lengths = lengths
        self._max_prompt = max_prompt
        self._text = words(Random(0), min(system_tokens, max_prompt // 2))

    def turns(self) -> Iterator[Prompt]:
        """Prompts until the conversation is full. Give `hear` the reply before asking for the next."""
        while True:
            self._text += f"\nuser: {words(self._rng, self._lengths.prompt.draw(self._rng))}\nassistant:"
            if len(self._text.split()) > self._max_prompt:
                return
            yield Prompt("chat", self._text, self._lengths.output.draw(self._rng))

    def hear(self, reply: str) -> None:
        self._text += reply
