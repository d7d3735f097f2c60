"""Structured outputs on a real engine: grammars compiled as the server does, requests run in this thread."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from pagetide.build import build
from pagetide.config import Settings
from pagetide.constraint import ConstrainedRow, Constraint
from pagetide.grammar import Grammar
from pagetide.grammar_compiler import GrammarCompiler, Ready, open_grammars
from pagetide.parse_structured import take_grammar
from pagetide.request import FinishReason, Output, Request, SamplingParams

MAX_GRAMMAR_BYTES = 2**16
WAIT_S = 60.0


@dataclass(slots=True)
class Answer:
    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    error: str | None = None
    num_preemptions: int = 0
    num_hits: int = 0

    def take(self, output: Output) -> None:
        self.tokens += output.token_ids
        self.reason, self.error = output.finish_reason, output.error
        if output.stats is not None:
            self.num_preemptions = output.stats.num_preemptions
            self.num_hits = output.stats.num_prefix_hit_tokens


class Listener:
    def __init__(self) -> None:
        self.num_hits = 0
        self.compiled: list[bool] = []

    def on_grammar_hit(self) -> None:
        self.num_hits += 1

    def on_grammar_compiled(self, took_s: float, refused: bool) -> None:
        assert took_s > 0
        self.compiled.append(not refused)


def grammar(parameters: Mapping[str, Any]) -> Grammar:
    found = take_grammar(dict(parameters), MAX_GRAMMAR_BYTES)
    assert found is not None
    return found


def constraint(grammars: Any, of: Grammar) -> Constraint:
    """Waits for the compile. Raises what the client would be told."""
    ready: SimpleQueue[Ready] = SimpleQueue()
    grammars.compile(of, ready.put)
    return ready.get(timeout=WAIT_S)()


class World:
    """`grammars` compiles for several worlds of one vocabulary: it is the slowest part of a test."""

    def __init__(self, model: Path, grammars: GrammarCompiler | None = None, **settings: Any) -> None:
        values = {"model": str(model), "device": "cpu"} | settings
        self.settings = Settings.from_mapping(values)
        self.built = build(self.settings, model.parent, on_step=lambda stats: None)
        self.listener = Listener()
        opened = grammars or open_grammars(self.built, self.settings, self.listener)
        assert isinstance(opened, GrammarCompiler)
        self.grammars = opened

    def constraint(self, parameters: Mapping[str, Any]) -> Constraint:
        return constraint(self.grammars, grammar(parameters))

    def run(
        self,
        asked: Sequence[tuple[Mapping[str, Any] | None, SamplingParams]],
        prompt: str = "Write JSON.",
        preempt_each: int = 0,
    ) -> list[Answer]:
        """All at once; each has its grammar's parameters, or None, and how to sample.

        In every `preempt_each`th turn, if it is not 0, someone loses all blocks.
        """
        answers = [Answer() for _ in asked]
        for at, (parameters, params) in enumerate(asked):
            self.built.engine.submit(
                Request(
                    id=at,
                    prompt_ids=array("i", self.built.tokenizer.encode(prompt)),
                    params=params,
                    sink=answers[at].take,
                    arrival_s=0.0,
                    eos_token_ids=self.built.eos_token_ids,
                    constraint=None if parameters is None else self.constraint(parameters),
                )
            )
        for turn in itertools.count(1):
            if all(answer.reason for answer in answers):
                return answers
            if preempt_each and turn % preempt_each == 0:
                self._preempt(turn // preempt_each)
            self.built.engine.turn(wait=False)
        raise AssertionError

    def _preempt(self, number: int) -> None:
        scheduler = self.built.engine._scheduler
        victims = [each for each in scheduler.running if not scheduler.tenants.is_protected(each)]
        if victims:
            scheduler._roster.preempt(victims[number % len(victims)])

    def mask(self, of: Constraint, tokens: Sequence[int]) -> list[int]:
        """The words of the bitmask after an output of these tokens."""
        bitmask = torch.zeros((1, -(-self.built.vocab_size // 32)), dtype=torch.int32)
        of.fill(ConstrainedRow(0, 0, of, array("i", tokens), 0, frozenset()), bitmask, 0)
        words: list[int] = bitmask[0].tolist()
        return words

    def text(self, answer: Answer) -> str:
        """As the client sees it: special tokens, and so the end token, are no part of it."""
        return self.built.tokenizer.decode(answer.tokens, skip_special_tokens=True)
