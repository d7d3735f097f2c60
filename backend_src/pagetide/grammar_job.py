"""What passes between the server and the process that compiles its grammars."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from pagetide.grammar import Grammar
from pagetide.grammar_utf8 import is_part_of_text

STARTED, COMPILED, REFUSED = b"s", b"c", b"r"
"""A reply is STARTED, then COMPILED and the compiled grammar in JSON, or REFUSED and the reason."""

_CONTROL = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[i]` are the bytes of token i, one for each of the model's logits; `ends` end an output."""

    tokens: list[bytes]
    ends: list[int]

    def of(self, is_json: bool) -> Vocabulary:
        """The tokens that such an output may have: no output has bytes that are no part of any text.

        xgrammar 0.2.9 lets control characters into JSON strings of bounded length, where JSON has none. So
        no JSON output has tokens with any, but for line breaks, which it keeps out of strings by itself.
        """
        served = (is_part_of_text(each) and not (is_json and _CONTROL.search(each)) for each in self.tokens)
        tokens = [each if is_served else b"" for each, is_served in zip(self.tokens, served, strict=True)]
        return Vocabulary(tokens, self.ends)


@dataclass(frozen=True, slots=True)
class Job:
    """After `max_s` seconds the compile is ended, and beyond `max_bytes` it is given no memory."""

    grammar: Grammar
    max_s: float
    max_bytes: int


def read_all(peer: socket.socket) -> bytes:
    """Everything until the other side ends. Raises TimeoutError by the socket's own limit."""
    parts = []
    while part := peer.recv(2**16):
        parts.append(part)
    return b"".join(parts)
