"""Logits to tokens, for all sampled rows at once, on the device that holds them.

A row's token depends only on its logits, its parameters and (seed, position): never on the batch.
One uniform number a row decides (inverse transform sampling); it is a hash of (seed, position), so
nothing is stored and nothing drifts when a request is preempted and comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagetide.grammar_masks import StepMasks
from pagetide.logits import edit, is_nothing_left
from pagetide.logprobs import describe
from pagetide.request import SamplingParams, TokenLogprobs
from pagetide.step import NO_TOKEN, SampledRows
from pagetide.transfer import download, upload
from pagetide_kernels import ops

_MOST_TOP_K = 2**31 - 1
"""What an int32 holds; more is everything too."""

_GREEDY_BELOW = 1e-5
"""A lower temperature overflows float32, and asks for the likeliest token anyway."""


Told = tuple[list[int], list[TokenLogprobs | None]]
"""A row's token, and its log-probabilities where they are asked for."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One token a row: `tokens` [S] int64, or NO_TOKEN, on the device. `read` waits for it, and tells."""

    tokens: torch.Tensor
    read: Callable[[], Told]


def needs_logits(sampled: SampledRows) -> bool:
    """Whether more than the likeliest token of each row is asked for, or may be while the rows are open."""
    is_changed = sampled.is_open or sampled.edits is not None or bool(sampled.constrained)
    return is_changed or any(_is_drawn(each) or each.logprobs is not None for each in sampled.params)


def take_likeliest(tokens: torch.Tensor) -> Chosen:
    """Of rows that need no logits; `tokens` [S] int64."""
    arrived = download(tokens)
    return Chosen(tokens, lambda: (arrived()[0].tolist(), [None] * len(tokens)))


def sample(logits: torch.Tensor, sampled: SampledRows, masks: StepMasks | None = None) -> Chosen:
    """Choose one token a row.

    Args:
        logits: [S, V] float32, row i for `sampled`'s entry i. Overwritten.
        sampled: parameters, seeds and positions of the S rows, and what changes their logits.
        masks: what the grammars allow in the rows that follow one, None if there are none.
    """
    report = _Report(logits, sampled.params)
    if sampled.edits is not None:
        edit(logits, sampled.edits)
    if masks is not None:
        rows, bitmask = (upload(each.numpy(), logits.device) for each in (masks.rows, masks.bitmask))
        ops.apply_bitmask(logits, rows, bitmask)
    tokens = ops.likeliest(logits)
    impossible = None if sampled.edits is None and masks is None else is_nothing_left(logits, tokens)
    _draw(logits, tokens, sampled)
    logprobs = report.of(tokens)
    if impossible is not None:
        tokens.masked_fill_(impossible, NO_TOKEN)
    arrived = download(tokens)
    return Chosen(tokens, lambda: (arrived()[0].tolist(), logprobs()))


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position), by SplitMix64's finaliser (Steele et al., OOPSLA'14)."""
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(seeds) + positions * np.uint64(0x9E3779B97F4A7C15))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _draw(logits: torch.Tensor, tokens: torch.Tensor, sampled: SampledRows) -> None:
    """Puts drawn tokens in place of the likeliest in the rows that are not greedy.

    One candidate is the likeliest, also where several are equally likely.
    """
    rows = [i for i, each in enumerate(sampled.params) if _is_drawn(each)]
    if rows:
        places = upload(np.array(rows), logits.device)
        chosen = logits if len(rows) == len(logits) else logits[places]
        tokens[places] = ops.sample(chosen, **_columns(sampled, rows, logits.device))


def _is_drawn(params: SamplingParams) -> bool:
    return params.temperature >= _GREEDY_BELOW and params.top_k != 1


def _columns(sampled: SampledRows, rows: list[int], device: torch.device) -> dict[str, torch.Tensor]:
    """What `ops.sample` takes, one value a row."""
    params = [sampled.params[i] for i in rows]
    draws = uniform(np.frombuffer(sampled.seeds, np.uint64), np.frombuffer(sampled.positions, np.uint64))

    def column(values: list[float], dtype: npt.DTypeLike = np.float32) -> torch.Tensor:
        with np.errstate(over="ignore"):
            return upload(np.array(values, dtype), device)

    return {
        "temperature": column([p.temperature for p in params]),
        "top_k": column([min(max(p.top_k, 0), _MOST_TOP_K) for p in params], np.int32),
        "top_p": column([p.top_p for p in params]),
        "min_p": column([p.min_p for p in params]),
        "uniform": upload(draws[rows], device),
    }


class _Report:
    """The log-probabilities that rows ask for, from the logits before edits, temperature and filters.

    vLLM reports these too.
    """

    def __init__(self, logits: torch.Tensor, params: Rows[SamplingParams]) -> None:
        self._num_rows = len(params)
        self._num_top = {i: p.logprobs for i, p in enumerate(params) if p.logprobs is not None}
        if self._num_top:
            self._rows = upload(np.array(list(self._num_top)), logits.device)
            self._logprobs = logits[self._rows].log_softmax(dim=-1)

    def of(self, tokens: torch.Tensor) -> Callable[[], list[TokenLogprobs | None]]:
        """`tokens` [S] are the chosen ones. What it returns waits for the device, and reads."""
        if not self._num_top:
            return lambda: [None] * self._num_rows
        told = describe(self._logprobs, tokens[self._rows], list(self._num_top.values()))
        return lambda: self._in_rows(told())

    def _in_rows(self, told: list[TokenLogprobs]) -> list[TokenLogprobs | None]:
        found: list[TokenLogprobs | None] = [None] * self._num_rows
        for row, each in zip(self._num_top, told, strict=True):
            found[row] = each
        return found
