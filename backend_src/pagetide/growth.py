"""What a step's result makes of its sequences: they grow by a token, or end, and are told so."""

from __future__ import annotations

from collections.abc import Callable

from pagetide.admission import PeakEstimate
from pagetide.draft import Draft
from pagetide.request import FinishReason, Output, Sequence, Status, TokenLogprobs
from pagetide.roster import Delivery, Roster
from pagetide.stats import Tally
from pagetide.step import NO_TOKEN, StepResult

_NO_TOKEN_LEFT = "no token is left to choose from: together, the request's limits on tokens forbid every one"


class Growth:
    """Owned by the scheduler. Teaches the estimate how long outputs get."""

    def __init__(
        self, roster: Roster, estimate: PeakEstimate, max_model_len: int, clock: Callable[[], float]
    ) -> None:
        self._roster = roster
        self._estimate = estimate
        self._max_model_len = max_model_len
        self._clock = clock

    def take(self, ended: Draft, result: StepResult, tally: Tally) -> list[Delivery]:
        """What was computed for sequences that have ended since the plan is dropped."""
        sequences, plan, finished = list(ended.sequences.values()), ended.plan, Status.FINISHED
        scored = zip(plan.scored.rows if plan.scored else (), result.scores, strict=True)
        deliveries = [
            (sequences[row].request, Output(prompt_logprobs=scores))
            for row, scores in scored
            if sequences[row].status is not finished
        ]
        sampled = zip(plan.sampled.rows, result.token_ids, result.logprobs, strict=True)
        deliveries += [
            self._append(sequences[row], token, logprobs, tally)
            for row, token, logprobs in sampled
            if sequences[row].status is not finished
        ]
        return deliveries

    def _append(
        self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None, tally: Tally
    ) -> Delivery:
        if token == NO_TOKEN:
            output = Output(finish_reason=FinishReason.ERROR, error=_NO_TOKEN_LEFT)
            return self._roster.finish(sequence, output)
        sequence.tokens.append(token)
        sequence.num_unknown = 0
        tally.num_generated += 1
        stats = None
        if sequence.first_token_s is None:
            stats = sequence.begin_output(self._clock())
            tally.num_prompt_tokens += stats.num_prompt_tokens
        reason, stop_token = sequence.finish_reason(token, self._max_model_len)
        output = Output((token,), (logprobs,) if logprobs else (), reason, stop_token, stats=stats)
        if reason is None:
            return sequence.request, output
        self._estimate.learn(sequence.num_output_tokens)
        return self._roster.finish(sequence, output)
