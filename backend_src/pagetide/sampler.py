"""Logits to tokens, for all sampled rows at once, on the device that holds them.

A row's token depends only on its logits, its parameters and (seed, position): never on the batch.
One uniform number a row decides (inverse transform sampling); it is a hash of (seed, position), so
nothing is stored and nothing drifts when a request is preempted and comes back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagetide.logits import edit, is_nothing_left
from pagetide.logprobs import describe
from pagetide.request import SamplingParams, TokenLogprobs
from pagetide.step import NO_TOKEN, SampledRows

_GREEDY_BELOW = 1e-5
"""A lower temperature overflows float32, and asks for the likeliest token anyway."""

_MOST_CANDIDATES = 1024
"""Filters look at this many most likely tokens first; only rows that need more are sorted whole."""


def sample(logits: torch.Tensor, sampled: SampledRows) -> tuple[list[int], list[TokenLogprobs | None]]:
    """Choose one token a row.

    Args:
        logits: [S, V] float32, row i for `sampled`'s entry i. Overwritten where there are edits.
        sampled: parameters, seeds and positions of the S rows, and what changes their logits.
    """
    report = _Report(logits, sampled.params)
    if sampled.edits is not None:
        edit(logits, sampled.edits)
    tokens = logits.argmax(dim=-1)
    impossible = None if sampled.edits is None else is_nothing_left(logits, tokens)
    for group in _groups(sampled, logits.shape[-1], logits.device):
        rows = torch.tensor(group.rows, device=logits.device)
        tokens[rows] = group.draw(logits[rows])
    logprobs = report.of(tokens)
    if impossible is not None:
        tokens.masked_fill_(impossible, NO_TOKEN)
    return tokens.tolist(), logprobs


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position), by SplitMix64's finaliser (Steele et al., OOPSLA'14)."""
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(seeds) + positions * np.uint64(0x9E3779B97F4A7C15))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(slots=True)
class _Group:
    """Rows that are drawn the same way, with their parameters as columns [n, 1]."""

    rows: list[int]
    filtered: bool
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """logits [n, V] → token ids [n]."""
        scaled = logits / self.temperature
        if not self.filtered:
            return _pick(torch.softmax(scaled, dim=-1), self.uniform)
        tokens, complete = self._draw_filtered(scaled, _MOST_CANDIDATES)
        if not bool(complete.all()):
            everything, _ = self._draw_filtered(scaled, scaled.shape[-1])
            tokens = torch.where(complete, tokens, everything)
        return tokens

    def _draw_filtered(self, scaled: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw among each row's `most` likeliest tokens; the second tensor [n] says where that was enough."""
        width = min(most, scaled.shape[-1])
        values, ids = scaled.topk(width, dim=-1)
        rank = torch.arange(width, device=scaled.device)
        keep = rank < self.top_k
        inside = values.masked_fill(~keep, -math.inf).logsumexp(dim=-1, keepdim=True)
        everything = scaled.logsumexp(dim=-1, keepdim=True)
        probs = torch.exp(values - torch.where(self.top_k < scaled.shape[-1], inside, everything))
        before = probs.cumsum(dim=-1, dtype=torch.float64) - probs
        keep &= (before < self.top_p) & (values >= values[:, :1] + torch.log(self.min_p))
        complete = ~keep[:, -1] | (width == scaled.shape[-1]) | (self.top_k[:, 0] <= width)
        picked = _pick(probs.masked_fill(~keep, 0.0), self.uniform)
        return ids.gather(1, picked[:, None])[:, 0], complete


def _pick(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """weights [n, W] ≥ 0, uniform [n, 1] in [0, 1) → index [n] drawn in proportion to the weights."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    target = uniform * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return index.clamp_(max=weights.shape[-1] - 1)


def _groups(sampled: SampledRows, vocab_size: int, device: torch.device) -> list[_Group]:
    """Random rows, in at most two groups: those that filter, and those that draw from everything."""
    draws = uniform(np.frombuffer(sampled.seeds, np.uint64), np.frombuffer(sampled.positions, np.uint64))
    random_rows = [i for i, params in enumerate(sampled.params) if params.temperature >= _GREEDY_BELOW]
    groups = []
    for filtered in (False, True):
        rows = [i for i in random_rows if _filters(sampled.params[i], vocab_size) is filtered]
        if rows:
            params = [sampled.params[i] for i in rows]
            groups.append(_group(rows, filtered, params, draws[rows], vocab_size, device))
    return groups


def _filters(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1 or params.min_p > 0


def _group(
    rows: list[int],
    filtered: bool,
    params: Rows[SamplingParams],
    draws: npt.NDArray[np.float64],
    vocab_size: int,
    device: torch.device,
) -> _Group:
    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

    return _Group(
        rows,
        filtered,
        temperature=column([p.temperature for p in params]),
        top_k=column([p.top_k if p.top_k > 0 else vocab_size for p in params]),
        top_p=column([p.top_p for p in params]),
        min_p=column([p.min_p for p in params]),
        uniform=torch.from_numpy(draws)[:, None].to(device),
    )


class _Report:
    """The log-probabilities that rows ask for, from the logits before edits, temperature and filters.

    vLLM reports these too.
    """

    def __init__(self, logits: torch.Tensor, params: Rows[SamplingParams]) -> None:
        self._num_rows = len(params)
        self._num_top = {i: p.logprobs for i, p in enumerate(params) if p.logprobs is not None}
        if self._num_top:
            self._rows = torch.tensor(list(self._num_top), device=logits.device)
            self._logprobs = logits[self._rows].log_softmax(dim=-1)

    def of(self, tokens: torch.Tensor) -> list[TokenLogprobs | None]:
        """`tokens` [S] are the chosen ones."""
        found: list[TokenLogprobs | None] = [None] * self._num_rows
        if self._num_top:
            told = describe(self._logprobs, tokens[self._rows], list(self._num_top.values()))
            for row, each in zip(self._num_top, told, strict=True):
                found[row] = each
        return found
