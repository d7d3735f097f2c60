"""How commands talk to whoever runs them: text to stdout, everything else to stderr, one line an error."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

from pagetide_client.errors import InvalidRequest, ModelNotFound, PagetideError, ServerUnavailable, Timeout

_EXIT_CODES: dict[type[PagetideError], int] = {
    InvalidRequest: 2,
    ServerUnavailable: 3,
    ModelNotFound: 4,
    Timeout: 5,
}
_WIDE = 10_000


def use_utf8() -> None:
    """Whatever the locale: models write emoji, and a pipe should get them whole."""
    sys.argv = [_utf8(argument) for argument in sys.argv]
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def exit_code(error: PagetideError) -> int:
    return _EXIT_CODES.get(type(error), 1)


def complain(message: str) -> None:
    sys.stderr.write(f"pagetide: {' '.join(message.split())}\n")
    sys.stderr.flush()


def note(message: str) -> None:
    """Something to know that is no output and no error."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def show(text: str) -> None:
    """Writes a piece of a model's text at once."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _utf8(argument: str) -> str:
    """An argument read anew; one that is no UTF-8, such as an old file name, stays as it is."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeDecodeError:
        return argument


@contextmanager
def line() -> Iterator[Callable[[str], None]]:
    """`show`, followed by the end of the line if anything was shown; also when the answer was cut short."""
    begun = False

    def show_piece(text: str) -> None:
        nonlocal begun
        begun = True
        show(text)

    try:
        yield show_piece
    finally:
        if begun:
            show("\n")


def printable(text: str) -> str:
    """Text that can't move a terminal's cursor, change its colours or its title."""
    return "".join(
        char if char in "\n\t" or char.isprintable() or char.isspace() else "\ufffd" for char in text
    )


def console(stream: TextIO | None = None) -> Console:
    """A rich console on stdout. In a pipe it writes no colours and breaks no lines."""
    stream = stream or sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDE, highlight=False)
