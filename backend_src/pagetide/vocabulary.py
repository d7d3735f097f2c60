"""The bytes of every token, as the tokenizer's decoder writes them: what a grammar is matched against."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer as Backend

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(backend: Backend, vocab_size: int) -> list[bytes]:
    """One entry for each of the model's `vocab_size` logits.

    Empty for special tokens, which are no part of a text, and for ids that the tokenizer does not have.
    Raises ValueError when tokens are decoded in a way that is neither byte-level nor with byte fallback.
    """
    write = _writer(json.loads(backend.decoder.__getstate__() if backend.decoder else "{}"))
    added_tokens = backend.get_added_tokens_decoder()
    vocabulary = [b""] * vocab_size
    for token, index in backend.get_vocab(with_added_tokens=True).items():
        if index < vocab_size:
            vocabulary[index] = write(token)
    for index, added in added_tokens.items():
        if index < vocab_size:
            vocabulary[index] = b"" if added.special else added.content.encode()
    return vocabulary


def _writer(decoder: dict[str, Any]) -> Any:
    steps = {step["type"] for step in decoder.get("decoders", [decoder]) if "type" in step}
    if "ByteLevel" in steps:
        return _byte_level
    if "ByteFallback" in steps:
        return _byte_fallback
    raise ValueError(f"its tokenizer decodes by {', '.join(sorted(steps)) or 'nothing'}")


def _byte_level(token: str) -> bytes:
    """GPT-2's alphabet writes each byte as one printable character."""
    if all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token)
    return token.encode()


def _byte_fallback(token: str) -> bytes:
    """SentencePiece: spaces are written as a letter, bytes without a token of their own in hexadecimal."""
    match = _BYTE.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_SPACE, " ").encode()


def _alphabet() -> dict[str, int]:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTES = _alphabet()
