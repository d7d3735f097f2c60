"""Grammars are compiled once, within limits that the kernel keeps, or refused with the reason."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from grammar_world import WAIT_S, Listener, constraint, grammar

from pagetide.grammar import Grammar, TooManyGrammarsError
from pagetide.grammar_compiler import (
    MAX_COMPILING,
    MAX_WAITING,
    GrammarCompiler,
    NoGrammars,
    Ready,
)
from pagetide.grammar_job import Vocabulary
from pagetide.grammar_process import CompileError, GrammarProcess
from pagetide.parse_values import InvalidArgumentError

MAX_BYTES = 2**29
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), b"ab", b""], [257])
LARGE = {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1000)}}}
"""Takes gigabytes."""


def endless(index: int) -> Grammar:
    """Takes a minute and more."""
    innermost = {"type": "integer", "minimum": index}
    return grammar({"guided_json": '{"type":"array","items":' * 800 + json.dumps(innermost) + "}" * 800})


def compiler(listener: Listener, max_s: float = 20.0, cache_bytes: int = 2**24) -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY, max_s, MAX_BYTES, cache_bytes, listener)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def grammars(listener: Listener) -> Iterator[GrammarCompiler]:
    made = compiler(listener)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def process() -> Iterator[GrammarProcess]:
    made = GrammarProcess(VOCABULARY, max_s=1.0, max_bytes=MAX_BYTES)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"guided_json": {"type": "banana"}}, 'guided_json can\'t be compiled: Unsupported type "banana"'),
        ({"guided_json": False}, "Schema 'false' cannot accept any value"),
        ({"guided_json": {"$ref": "#/$defs/none"}}, "Cannot find field '$defs'"),
        ({"guided_regex": "(a"}, "guided_regex can't be compiled: "),
        ({"guided_regex": "a(?=b)b"}, "Lookahead is not supported yet"),
        ({"guided_regex": r"(a)\1"}, "guided_regex can't be compiled: "),
        ({"guided_grammar": "root ::= nothing"}, "guided_grammar can't be compiled: EBNF "),
        ({"guided_grammar": 'main ::= "a"'}, "guided_grammar can't be compiled: "),
        (
            {"structured_outputs": {"structural_tag": {"type": "structural_tag"}}},
            "structured_outputs.structural_tag can't be compiled: ",
        ),
        (
            {"guided_json": {"allOf": [{"type": "integer"}, {"minimum": 3, "type": "integer"}]}},
            "Support for allOf with multiple options is still ongoing",
        ),
    ],
)
def test_what_does_not_compile_is_refused_with_the_compilers_reason(
    grammars: GrammarCompiler, listener: Listener, parameters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        constraint(grammars, grammar(parameters))
    assert reason in str(refused.value)
    assert "/project/" not in str(refused.value)
    assert listener.compiled == [False]


def test_the_same_grammar_is_compiled_once_whatever_it_is_called(
    grammars: GrammarCompiler, listener: Listener
) -> None:
    first = constraint(grammars, grammar({"guided_regex": "a+"}))
    second = constraint(grammars, grammar({"structured_outputs": {"regex": "a+"}}))
    assert first is not second
    assert (listener.compiled, listener.num_hits) == ([True], 1)


def test_requests_that_ask_at_the_same_time_share_one_compile(
    grammars: GrammarCompiler, listener: Listener
) -> None:
    ready: SimpleQueue[Ready] = SimpleQueue()
    for _ in range(20):
        grammars.compile(grammar({"guided_regex": "a{3}"}), ready.put)
    made = {id(ready.get(timeout=WAIT_S)()) for _ in range(20)}
    assert made
    assert listener.compiled == [True]


def test_the_cache_keeps_what_was_used_last_within_its_bytes(listener: Listener) -> None:
    grammars = compiler(listener, cache_bytes=20_000)
    kept, *others = [grammar({"guided_choice": [f"number {i}"]}) for i in range(30)]
    for other in others:
        constraint(grammars, other)
        constraint(grammars, kept)
    assert listener.num_hits == len(others) - 1
    num_compiled = len(listener.compiled)
    constraint(grammars, others[0])
    constraint(grammars, others[-1])
    assert (listener.num_hits, len(listener.compiled)) == (len(others), num_compiled + 1)
    grammars.stop()


def test_a_cache_of_no_bytes_compiles_each_time(listener: Listener) -> None:
    grammars = compiler(listener, cache_bytes=0)
    for _ in range(2):
        constraint(grammars, grammar({"guided_regex": "a"}))
    grammars.stop()
    assert (listener.compiled, listener.num_hits) == ([True, True], 0)


def test_a_compile_beyond_its_time_is_ended(process: GrammarProcess) -> None:
    with pytest.raises(CompileError, match="it takes more than 1 s"):
        process.compile(endless(0))


def test_a_compile_beyond_its_memory_is_ended() -> None:
    process = GrammarProcess(VOCABULARY, max_s=WAIT_S, max_bytes=2**26)
    with pytest.raises(CompileError, match=r"it takes too much memory|more than \d+ bytes of memory"):
        process.compile(grammar(LARGE))
    process.stop()


def test_an_endless_compile_holds_up_no_other(listener: Listener) -> None:
    grammars = compiler(listener, max_s=6.0)
    constraint(grammars, grammar({"guided_regex": "warm"}))
    never: SimpleQueue[Ready] = SimpleQueue()
    for index in range(MAX_COMPILING - 1):
        grammars.compile(endless(index), never.put)
    constraint(grammars, grammar({"guided_regex": "quick"}))
    assert never.empty()
    assert listener.compiled == [True, True]
    grammars.stop()
    assert listener.compiled.count(False) == MAX_COMPILING - 1


def test_more_grammars_than_may_wait_are_refused_for_now(listener: Listener) -> None:
    grammars = compiler(listener, max_s=0.01)
    many = [endless(index) for index in range(1000)]
    with pytest.raises(TooManyGrammarsError, match=f"{MAX_WAITING} grammars wait to be compiled already"):
        _take_all(grammars, many)
    grammars.stop()
    assert MAX_WAITING + MAX_COMPILING <= len(listener.compiled) < len(many)


def test_a_process_that_died_is_started_again(process: GrammarProcess) -> None:
    assert process.compile(grammar({"guided_regex": "a"}))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.compile(grammar({"guided_regex": "a"}))


def test_what_ends_the_servers_group_does_not_end_a_compile(process: GrammarProcess) -> None:
    assert process.compile(grammar({"guided_regex": "a"}))
    before = process.pid
    assert before is not None
    os.kill(before, signal.SIGTERM)
    os.kill(before, signal.SIGINT)
    assert process.compile(grammar({"guided_regex": "b"}))
    assert process.pid == before


def test_the_process_ends_with_its_parents_side() -> None:
    process = GrammarProcess(VOCABULARY, max_s=5.0, max_bytes=MAX_BYTES)
    assert process.compile(grammar({"guided_regex": "a"}))
    assert process.pid is not None
    process.stop()
    assert process.pid is None


def test_a_model_without_end_tokens_serves_no_grammars() -> None:
    none = NoGrammars("it has no end token")
    with pytest.raises(
        InvalidArgumentError,
        match="guided_regex is given, but this model serves none: it has no end token",
    ):
        none.compile(grammar({"guided_regex": "a"}), lambda ready: None)


def _take_all(grammars: GrammarCompiler, asked: list[Grammar]) -> None:
    for each in asked:
        grammars.compile(each, lambda ready: None)
