"""What a tokenizer is put together from, whichever file format it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers import processors


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """`special_tokens` are the variables a chat template may use, such as `bos_token`, by name."""

    backend: Backend
    special_tokens: Mapping[str, str]
    eos_token_ids: frozenset[int]
    chat_template: str | None


def frame_with(backend: Backend, bos: str | None, eos: str | None) -> None:
    """Makes `encode` put `bos` before and `eos` after every text; None: nothing there."""
    template = [token for token in (bos, "$A", eos) if token is not None]
    ends = [(token, backend.token_to_id(token)) for token in (bos, eos) if token is not None]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
