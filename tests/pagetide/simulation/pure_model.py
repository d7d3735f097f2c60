"""A model whose tokens are a pure function of the token history, over a KV cache that betrays mistakes.

Each position of the cache stores a digest of the tokens up to it, chained to the digest before it as read
through the block table; a token is drawn from the digests of *all* positions. So a block that was shared,
copied, moved, freed or overwritten wrongly changes what comes out.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from pagetide.config import BLOCK_SIZE
from pagetide.request import Request
from pagetide.step import StepPlan, StepResult

VOCAB_SIZE = 23
EOS = 7

Digests = npt.NDArray[np.uint32]


def digest(previous: int, token: int) -> int:
    return crc32(token.to_bytes(4, "little"), previous)


def next_token(digests: Digests, seed: int | None, banned: Iterable[int] = ()) -> int:
    """`seed` None is greedy; with a seed, the draw also depends on it and on the position."""
    content = crc32(digests.tobytes())
    draw = content if seed is None else digest(digest(content, seed % 2**32), len(digests))
    tokens = (digest(draw, attempt) % VOCAB_SIZE for attempt in itertools.count())
    return next(token for token in tokens if token not in banned)


def pure_output(request: Request) -> list[int]:
    """What the request must generate, whatever happens around it."""
    params, prompt = request.params, request.prompt_ids
    stops = request.eos_token_ids.union(params.stop_token_ids)
    digests = np.empty(len(prompt) + params.max_tokens, np.uint32)
    _extend(digests, 0, prompt)
    output: list[int] = []
    while len(output) < params.max_tokens:
        end = len(prompt) + len(output)
        held_back = len(output) < params.min_tokens
        output.append(next_token(digests[:end], draw_seed(request), stops if held_back else ()))
        if output[-1] in stops and len(output) > params.min_tokens:
            break
        _extend(digests, end, output[-1:])
    return output


def draw_seed(request: Request) -> int | None:
    return request.params.seed if request.params.temperature > 0 else None


def _extend(digests: Digests, start: int, tokens: Iterable[int]) -> None:
    previous = int(digests[start - 1]) if start else 0
    for position, token in enumerate(tokens, start):
        previous = digests[position] = digest(previous, token)


class PureRunner:
    """Writes every row's KV, then reads it, as the model does within each layer."""

    def __init__(self, num_blocks: int) -> None:
        self.kv = np.full((num_blocks, BLOCK_SIZE), 0xDEAD, np.uint32)

    def run(self, plan: StepPlan) -> StepResult:
        drawn = draw(plan, self.forward(plan, ()))
        return StepResult(drawn, [None] * len(drawn))

    def forward(self, plan: StepPlan, carried: Sequence[int]) -> list[Digests]:
        """What each sampled row's token is drawn from. `carried` are the tokens of the step before."""
        for copy in plan.copies:
            self.kv[copy.target] = self.kv[copy.source]
        tokens = plan.token_ids[:]
        for place, entry in zip(plan.carried.places, plan.carried.entries, strict=True):
            tokens[place] = carried[entry]
        start = 0
        for row, num_new in enumerate(plan.num_new):
            self._write(plan, row, tokens[start : start + num_new])
            start += num_new
        return [self._read(plan, entry) for entry in range(len(plan.sampled.rows))]

    def _write(self, plan: StepPlan, row: int, tokens: array[int]) -> None:
        table, start = plan.block_tables[row], plan.num_computed[row]
        previous = int(self.kv[table[(start - 1) // BLOCK_SIZE], (start - 1) % BLOCK_SIZE]) if start else 0
        for position, token in enumerate(tokens, start):
            previous = digest(previous, token)
            self.kv[table[position // BLOCK_SIZE], position % BLOCK_SIZE] = previous

    def _read(self, plan: StepPlan, entry: int) -> Digests:
        row = plan.sampled.rows[entry]
        end = plan.num_computed[row] + plan.num_new[row]
        table = np.frombuffer(plan.block_tables[row], np.int32)
        assert plan.sampled.positions[entry] == end, "the new token's position is not the sequence's end"
        return self.kv[table[: -(-end // BLOCK_SIZE)]].reshape(-1)[:end]


def draw(plan: StepPlan, digests: list[Digests]) -> list[int]:
    """A token for each sampled row, within what its edits leave."""
    sampled = plan.sampled
    assert not sampled.is_open, "tokens are chosen before it is known from which"
    return [
        next_token(each, seed if params.temperature > 0 else None, _banned(plan, entry))
        for entry, (each, seed, params) in enumerate(zip(digests, sampled.seeds, sampled.params, strict=True))
    ]


def _banned(plan: StepPlan, entry: int) -> set[int]:
    edits = plan.sampled.edits
    if edits is None:
        return set()
    pairs = zip(edits.banned.rows, edits.banned.tokens, strict=True)
    return {token for row, token in pairs if row == entry}
