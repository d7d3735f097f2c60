"""What is asked: prompts of random words, lengths drawn once from a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

SEED = 1234
PROMPT_TOKENS = (32, 256)
OUTPUT_TOKENS = (16, 128)
_TEXT = (
    "the river carried its silt past mills and quiet towns while engineers measured each tide "
    "against old tables of wind moon depth and patience that nobody living could quite explain"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: exactly `max_tokens` tokens come out, greedily, whatever the text says."""

    prompt: str
    num_prompt_tokens: int
    max_tokens: int


def make(count: int, encode: Callable[[str], list[int]], seed: int = SEED) -> list[Ask]:
    """`count` requests, uniform in prompt and output length."""
    rng = random.Random(seed)
    asks = []
    for _ in range(count):
        prompt = _prompt(rng, rng.randint(*PROMPT_TOKENS), encode)
        asks.append(Ask(prompt, len(encode(prompt)), rng.randint(*OUTPUT_TOKENS)))
    return asks


def _prompt(rng: random.Random, num_tokens: int, encode: Callable[[str], list[int]]) -> str:
    words = [rng.choice(_WORDS)]
    while len(encode(" ".join(words))) < num_tokens:
        words.append(rng.choice(_WORDS))
    return " ".join(words)
