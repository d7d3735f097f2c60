"""The process that compiles grammars, one fork for each: `python -m pagetide.grammar_worker FD`.

A grammar comes from a client, and nothing inside the compiler bounds what it takes: one that takes too
long, too much memory, or that crashes the compiler, must not take the server along. So this process has the
compiler ready, each compile runs in a fork of it under limits that the kernel keeps, and ends with it.

The vocabulary comes on standard input. FD is a Unix socket: each message on it carries the socket of one
compile. When the parent is gone, FD ends, and so does this process.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from pagetide.grammar import Grammar, GrammarKind
from pagetide.grammar_job import COMPILED, REFUSED, STARTED, Job, Vocabulary, read_all
from pagetide.grammar_lean import xgrammar

MAX_WHITESPACE = 16
"""Characters in a row between the parts of a JSON value: without a bound, a model may write nothing else."""

_NICENESS = 10


def main(control: socket.socket, vocabulary: Vocabulary) -> None:
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.nice(_NICENESS)
    compilers = {is_json: _compiler(vocabulary.of(is_json)) for is_json in (True, False)}
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        if os.fork() == 0:
            _serve(socket.socket(fileno=descriptors[0]), compilers)
        os.close(descriptors[0])


def _compiler(vocabulary: Vocabulary) -> Any:
    """It has one thread, since a fork has only the one that called it."""
    info = xgrammar.TokenizerInfo(vocabulary.tokens, xgrammar.VocabType.RAW, stop_token_ids=vocabulary.ends)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    compiler.compile_builtin_json_grammar()  # its parts stay in the cache, and most schemas have them
    return compiler


def _serve(peer: socket.socket, compilers: Mapping[bool, Any]) -> None:
    """In the fork: one job, one reply, no return."""
    job: Job = pickle.loads(read_all(peer))
    _limit(job)
    peer.sendall(STARTED)
    with tempfile.TemporaryFile() as warnings:
        os.dup2(warnings.fileno(), sys.stderr.fileno())
        reply = _reply(compilers[job.grammar.is_json], job.grammar)
        warnings.seek(0)
        ignored = warnings.read()
    peer.sendall(REFUSED + ignored if ignored else reply)
    os._exit(0)


def _reply(compiler: Any, grammar: Grammar) -> bytes:
    """What the compiler can't hold an output to, it ignores, and warns of that on standard error."""
    try:
        text: str = compile_grammar(compiler, grammar).serialize_json()
    except Exception as error:
        return REFUSED + str(error).encode(errors="replace")
    return COMPILED + text.encode()


def _limit(job: Job) -> None:
    """SIGALRM's default action ends a process wherever it is."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, job.max_s)
    most = _data_bytes() + job.max_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _data_bytes() -> int:
    with open("/proc/self/status") as status:
        kib = next(line.split()[1] for line in status if line.startswith("VmData:"))
    return int(kib) * 1024


def compile_grammar(compiler: Any, grammar: Grammar) -> Any:
    """Raises RuntimeError with the compiler's reason."""
    if grammar.kind is GrammarKind.REGEX:
        return compiler.compile_regex(grammar.text)
    if grammar.kind in (GrammarKind.GRAMMAR, GrammarKind.CHOICE):
        return compiler.compile_grammar(grammar.text)
    if grammar.kind is GrammarKind.STRUCTURAL_TAG:
        return compiler.compile_structural_tag(grammar.text)
    whitespace: dict[str, Any] = (
        {"max_whitespace_cnt": MAX_WHITESPACE}
        if grammar.any_whitespace
        else {"any_whitespace": False, "separators": (",", ":")}
    )
    return compiler.compile_json_schema(grammar.text, **whitespace)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), pickle.load(sys.stdin.buffer))
