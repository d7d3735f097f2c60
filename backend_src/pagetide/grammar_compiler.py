"""Grammars to what matchers need: compiled once each, by a few threads over one process, and cached.

Nothing here runs on the engine's thread, and Triton's only looks into the cache: a request whose grammar
is new goes to the engine from the thread that waited for the compile.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Protocol

import xgrammar

from pagetide.build import Built
from pagetide.config import Settings
from pagetide.constraint import Constraint
from pagetide.grammar import Grammar, TooManyGrammarsError
from pagetide.grammar_job import Vocabulary
from pagetide.grammar_matcher import Matcher, token_info
from pagetide.grammar_process import CompileError, GrammarProcess
from pagetide.grammar_utf8 import Utf8
from pagetide.parse_values import InvalidArgumentError

MAX_COMPILING = 4
"""Compiles at the same time: one that runs into its limit leaves the others three places."""

MAX_WAITING = 64
"""Grammars that wait for a place; more are refused for now."""

MAX_COMPILE_BYTES = 2**30
"""Memory of one compile."""

Ready = Callable[[], Constraint]
"""A new constraint each time, at the grammar's start. Raises InvalidArgumentError if it did not compile."""


class Listener(Protocol):
    """Who counts; called on any thread."""

    def on_grammar_hit(self) -> None: ...

    def on_grammar_compiled(self, took_s: float, refused: bool) -> None: ...


class GrammarCompiler:
    """`cache_bytes` bounds what compiled grammars take; the ones used last stay."""

    def __init__(
        self, vocabulary: Vocabulary, max_s: float, max_bytes: int, cache_bytes: int, listener: Listener
    ) -> None:
        self._infos = {is_json: token_info(vocabulary.of(is_json)) for is_json in (True, False)}
        self._utf8 = Utf8(vocabulary.tokens)
        self._process = GrammarProcess(vocabulary, max_s, max_bytes)
        self._cache = _Cache(cache_bytes)
        self._listener = listener
        self._pool = ThreadPoolExecutor(MAX_COMPILING, thread_name_prefix="pagetide-grammar")
        self._pending: dict[Grammar, Future[xgrammar.CompiledGrammar]] = {}
        self._lock = Lock()

    def compile(self, grammar: Grammar, then: Callable[[Ready], None]) -> None:
        """Calls `then` once: before this returns if the grammar is cached, else on a thread of its own.

        Any thread. Raises TooManyGrammarsError.
        """
        with self._lock:
            compiled = self._cache.get(grammar)
            future = None if compiled is not None else self._join(grammar)
        if compiled is not None:
            self._listener.on_grammar_hit()
            then(lambda: Matcher(compiled, self._utf8))
        elif future is not None:
            future.add_done_callback(lambda done: then(lambda: self._constraint(grammar, done)))

    def stop(self) -> None:
        """Finishes what waits, then ends the process."""
        self._pool.shutdown()
        self._process.stop()

    def _join(self, grammar: Grammar) -> Future[xgrammar.CompiledGrammar]:
        """The compile of this grammar that is under way already, or a new one. Holds the lock."""
        if grammar not in self._pending:
            if len(self._pending) >= MAX_COMPILING + MAX_WAITING:
                raise TooManyGrammarsError(f"{MAX_WAITING} grammars wait to be compiled already")
            self._pending[grammar] = self._pool.submit(self._compile, grammar)
        return self._pending[grammar]

    def _compile(self, grammar: Grammar) -> xgrammar.CompiledGrammar:
        started_s = time.monotonic()
        compiled = None
        try:
            text = self._process.compile(grammar)
            compiled = xgrammar.CompiledGrammar.deserialize_json(text, self._infos[grammar.is_json])
        finally:
            self._settle(grammar, compiled)
            self._listener.on_grammar_compiled(time.monotonic() - started_s, refused=compiled is None)
        return compiled

    def _constraint(self, grammar: Grammar, done: Future[xgrammar.CompiledGrammar]) -> Constraint:
        try:
            return Matcher(done.result(), self._utf8)
        except CompileError as error:
            raise InvalidArgumentError(f"{grammar.source} can't be compiled: {error}") from None

    def _settle(self, grammar: Grammar, compiled: xgrammar.CompiledGrammar | None) -> None:
        with self._lock:
            del self._pending[grammar]
            if compiled is not None:
                self._cache.put(grammar, compiled)


class NoGrammars:
    """In place of the compiler where the model can't be held to a grammar."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def compile(self, grammar: Grammar, then: Callable[[Ready], None]) -> None:
        raise InvalidArgumentError(f"{grammar.source} is given, but this model serves none: {self._reason}")

    def stop(self) -> None: ...


def open_grammars(built: Built, settings: Settings, listener: Listener) -> GrammarCompiler | NoGrammars:
    """What compiles grammars for this model."""
    ends = sorted(built.eos_token_ids)
    if not ends:
        return NoGrammars("it has no end token")
    try:
        vocabulary = Vocabulary(built.tokenizer.vocabulary(built.vocab_size), ends)
    except ValueError as error:
        return NoGrammars(str(error))
    return GrammarCompiler(
        vocabulary, settings.max_grammar_s, MAX_COMPILE_BYTES, settings.grammar_cache_bytes, listener
    )


class _Cache:
    """The grammars used last, within `max_bytes`. Guarded by its owner's lock."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[Grammar, xgrammar.CompiledGrammar] = OrderedDict()

    def get(self, grammar: Grammar) -> xgrammar.CompiledGrammar | None:
        if grammar in self._entries:
            self._entries.move_to_end(grammar)
        return self._entries.get(grammar)

    def put(self, grammar: Grammar, compiled: xgrammar.CompiledGrammar) -> None:
        self._entries[grammar] = compiled
        self._num_bytes += _size(grammar, compiled)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= _size(*self._entries.popitem(last=False))


def _size(grammar: Grammar, compiled: xgrammar.CompiledGrammar) -> int:
    size: int = compiled.memory_size_bytes
    return size + 2 * len(grammar.text)
