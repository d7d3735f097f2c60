"""The requests that every engine gets: token ids cut from Python's own documentation, by a fixed seed.

Each round has prompts of its own and the same lengths as every other, so that no engine finds in its prefix
cache what it computed a round before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pydoc_data.topics import topics
from typing import Any

SEED = 1234
NUM_REQUESTS = 64
PROMPT_TOKENS = (32, 256)
OUTPUT_TOKENS = (16, 128)
SINGLE_TOKENS = 128
LONG_TOKENS = 1024
SHARED_TOKENS, OWN_TOKENS, NUM_SHARING, SHARING_OUTPUT = 768, 32, 32, 16


def make(encode: Callable[[str], Sequence[int]], rounds: int) -> list[dict[str, Any]]:
    """A round: `offline` requests, all at once, `single`, `long`, and `first` and `second`, which share."""
    ids = list(encode("\n".join(topics[name] for name in sorted(topics))))
    lengths = random.Random(SEED)
    sizes = [(lengths.randint(*PROMPT_TOKENS), lengths.randint(*OUTPUT_TOKENS)) for _ in range(NUM_REQUESTS)]
    return [_round(random.Random(SEED + number), ids, sizes) for number in range(rounds)]


def _round(rng: random.Random, ids: list[int], sizes: list[tuple[int, int]]) -> dict[str, Any]:
    def cut(length: int) -> list[int]:
        start = rng.randrange(len(ids) - length)
        return ids[start : start + length]

    shared = cut(SHARED_TOKENS)
    return {
        "offline": {"prompts": [cut(size) for size, _ in sizes], "counts": [count for _, count in sizes]},
        "single": {"prompts": [cut(SINGLE_TOKENS)], "counts": [SINGLE_TOKENS]},
        "single_first": {"prompts": [cut(SINGLE_TOKENS)], "counts": [1]},
        "long": {"prompts": [cut(LONG_TOKENS)], "counts": [1]},
        "first": _sharing(shared, cut),
        "second": _sharing(shared, cut),
    }


def _sharing(shared: list[int], cut: Callable[[int], list[int]]) -> dict[str, Any]:
    return {
        "prompts": [shared + cut(OWN_TOKENS) for _ in range(NUM_SHARING)],
        "counts": [SHARING_OUTPUT] * NUM_SHARING,
    }
