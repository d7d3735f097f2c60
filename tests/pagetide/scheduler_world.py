"""A world around the real scheduler, driven call by call: for tests of one thing at a time."""

from __future__ import annotations

import itertools
from array import array

from simulation.pure_model import EOS, PureRunner, pure_output

from pagetide.block_pool import BlockPool, chain_root
from pagetide.config import BLOCK_SIZE
from pagetide.limits import Limits
from pagetide.request import FinishReason, Output, Request, SamplingParams
from pagetide.roster import Delivery
from pagetide.scheduler import Scheduler
from pagetide.step import StepPlan


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
            params=SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, temperature=0.0),
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
            self._take(self.scheduler.update(self._runner.run(plan)))
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
