"""A world around the real scheduler: a runner whose tokens are a pure function of the token history.

Its KV cache is real enough to betray every block mistake: each position stores a digest of the tokens
up to it, and a token is drawn from the digests of *all* positions read through the block table.
"""

from __future__ import annotations

import itertools
from array import array
from zlib import crc32

from pagetide.block_pool import BlockPool, chain_root
from pagetide.config import BLOCK_SIZE
from pagetide.request import FinishReason, Output, Request, SamplingParams
from pagetide.scheduler import Delivery, Limits, Scheduler
from pagetide.step import StepPlan, StepResult

VOCAB_SIZE = 23
EOS = 7


def digest(previous: int, token: int) -> int:
    return crc32(token.to_bytes(4, "little"), previous)


def next_token(digests: list[int]) -> int:
    return crc32(array("Q", digests).tobytes()) % VOCAB_SIZE


def pure_output(request: Request) -> list[int]:
    """What the request must generate, whatever happens around it."""
    digests: list[int] = []
    for token in request.prompt_ids:
        digests.append(digest(digests[-1] if digests else 0, token))
    output: list[int] = []
    while len(output) < request.params.max_tokens:
        output.append(next_token(digests))
        if output[-1] == EOS and len(output) > request.params.min_tokens:
            break
        digests.append(digest(digests[-1], output[-1]))
    return output


class PureRunner:
    """Writes every row's KV, then reads it, as the model does within each layer."""

    def __init__(self, num_blocks: int) -> None:
        self._kv = [[-1] * BLOCK_SIZE for _ in range(num_blocks)]

    def run(self, plan: StepPlan) -> StepResult:
        tokens = iter(plan.token_ids)
        for row, table in enumerate(plan.block_tables):
            start = plan.num_computed[row]
            for position in range(start, start + plan.num_new[row]):
                previous = self._read(table, position - 1) if position else 0
                self._kv[table[position // BLOCK_SIZE]][position % BLOCK_SIZE] = digest(
                    previous, next(tokens)
                )
        drawn = [self._draw(plan, row) for row in plan.sampled.rows]
        return StepResult(drawn, [None] * len(drawn))

    def _draw(self, plan: StepPlan, row: int) -> int:
        end = plan.num_computed[row] + plan.num_new[row]
        return next_token([self._read(plan.block_tables[row], position) for position in range(end)])

    def _read(self, table: array[int], position: int) -> int:
        return self._kv[table[position // BLOCK_SIZE]][position % BLOCK_SIZE]


class World:
    """The scheduler, the pure runner, and everything that was ever asked and answered."""

    def __init__(
        self, num_blocks: int, max_step_tokens: int, max_running: int, prefix_cache: bool = True
    ) -> None:
        root = (lambda salt: chain_root(b"weights", salt)) if prefix_cache else None
        limits = Limits(max_step_tokens, max_running, max_model_len=num_blocks * BLOCK_SIZE)
        self.scheduler = Scheduler(BlockPool(num_blocks), limits, root, clock=itertools.count().__next__)
        self._runner = PureRunner(num_blocks)
        self._ids = itertools.count()
        self.requests: dict[int, Request] = {}
        self.outputs: dict[int, list[Output]] = {}

    def submit(self, prompt: list[int], max_tokens: int, min_tokens: int = 0, salt: bytes = b"") -> int:
        request = Request(
            id=next(self._ids),
            prompt_ids=array("i", prompt),
            params=SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens),
            sink=lambda output: None,
            arrival_s=0.0,
            eos_token_ids=frozenset({EOS}),
            cache_salt=salt,
        )
        self.scheduler.check_fits(len(prompt), request.params)
        self.scheduler.add(request)
        self.requests[request.id] = request
        self.outputs[request.id] = []
        return request.id

    def abort(self, request_id: int) -> None:
        delivery = self.scheduler.abort(request_id, FinishReason.CANCELLED)
        self._take([delivery] if delivery else [])

    def step(self, fails: bool = False) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is not None and fails:
            self._take(self.scheduler.fail("planted"))
        elif plan is not None:
            self._take(self.scheduler.update(plan, self._runner.run(plan)))
        return plan

    def run_until_idle(self, most_steps: int = 100_000) -> None:
        for _ in range(most_steps):
            if self.scheduler.is_idle:
                return
            assert self.step() is not None, "work is left and nothing was planned"
        raise AssertionError(f"not idle after {most_steps} steps")

    def tokens(self, request_id: int) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.token_ids]

    def live(self) -> list[int]:
        return [i for i, outputs in self.outputs.items() if not outputs or outputs[-1].finish_reason is None]

    def check_outputs(self) -> None:
        """Tokens in order, none twice, none missing, one ending; cut short only by an abort or a failure."""
        for request_id, request in self.requests.items():
            expected, got = pure_output(request), self.tokens(request_id)
            assert got == expected[: len(got)]
            endings = [o.finish_reason for o in self.outputs[request_id] if o.finish_reason]
            assert len(endings) <= 1
            if endings and endings[0] in (FinishReason.STOP, FinishReason.LENGTH):
                assert got == expected

    def _take(self, deliveries: list[Delivery]) -> None:
        for request, output in deliveries:
            self.outputs[request.id].append(output)
