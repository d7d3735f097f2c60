"""No output that follows a grammar has bytes that are no text."""

from __future__ import annotations

import pytest

from pagetide.grammar_utf8 import SECOND_BYTES, Utf8, is_part_of_text

TOKENS = [bytes([byte]) for byte in range(256)] + [b"", b"a\xe0", b"\xa0b", b"\x80"]


PARTS = [b"", b"a", b"\x80", b"\x80\xbf\x80", b"\x80a", b"\xe0", b"a\xf0\x9f", b"\xed\x9f", b"\xf4\x8f"]
NO_PARTS = [
    *(b"\xc0", b"\xc1", b"\xf5", b"\xff", b"\xe0\x80", b"\xed\xa0", b"\xf0\x80", b"\xf4\x90"),
    *(b"a\x80", b"\xe3a", b"\x80\x80\x80\x80", b"\xed\xa0\x80"),
]


@pytest.mark.parametrize("token", [*PARTS, "é日🙂".encode()])
def test_what_some_text_has_is_part_of_text(token: bytes) -> None:
    assert is_part_of_text(token)


@pytest.mark.parametrize("token", NO_PARTS)
def test_what_no_text_has_is_not(token: bytes) -> None:
    assert not is_part_of_text(token)


@pytest.mark.parametrize("lead", range(256))
def test_after_a_lead_byte_come_the_bytes_that_python_takes_too(lead: int) -> None:
    words = Utf8(TOKENS).after(lead)
    for second in range(0x80, 0xC0):
        allowed = words is None or bool(words[second // 32] >> (second % 32) & 1)
        if is_part_of_text(bytes([lead])) and lead >= 0xC0:
            assert allowed == is_part_of_text(bytes([lead, second]))
    assert (words is not None) == (lead in SECOND_BYTES)


def test_only_the_last_and_the_first_byte_of_tokens_count() -> None:
    words = Utf8(TOKENS).after(257)
    assert words is not None
    assert words[258 // 32] >> (258 % 32) & 1
    assert not words[259 // 32] >> (259 % 32) & 1
    assert not words[ord("a") // 32] >> (ord("a") % 32) & 1
