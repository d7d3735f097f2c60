"""Text to token ids and back, as the model's own tokenizer does it, without importing transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagetide.chat_template import ChatTemplate, ChatTemplateError, Message
from pagetide.checkpoint import WeightsError, is_gguf, locate
from pagetide.tokenizer_gguf import read_gguf
from pagetide.tokenizer_hf import read_directory
from pagetide.tokenizer_parts import TokenizerParts
from pagetide.vocabulary import token_bytes


class Tokenizer:
    """Immutable, so any thread may use it.

    `vocab_size` counts added tokens too; `eos_token_ids` end a text or a turn; `special_ids` are what
    `decode` can skip.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        backend = parts.backend
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._chat_template = _compile(parts)
        self.eos_token_ids = parts.eos_token_ids
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Special tokens written in `text` become their ids; `add_special_tokens` adds the model's BOS.

        A model without BOS gets none.
        """
        # A batch of one, because unlike `encode` it lets other threads run: a long prompt takes seconds.
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Bytes that form no character come out as U+FFFD."""
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def vocabulary(self, size: int) -> list[bytes]:
        """What each of a model's `size` logits stands for; see `token_bytes`."""
        return token_bytes(self._backend, size)

    def apply_chat_template(self, messages: Sequence[Message], **variables: Any) -> str:
        """The prompt for `messages`, mappings with `role` and `content`; see `ChatTemplate.render`.

        Raises ChatTemplateError when the model has no template or it refuses the messages.
        """
        if self._chat_template is None:
            raise ChatTemplateError("the model has no chat template; give it a plain prompt")
        return self._chat_template.render(messages, **variables)


def _compile(parts: TokenizerParts) -> ChatTemplate | None:
    return ChatTemplate(parts.chat_template, parts.special_tokens) if parts.chat_template else None


def load(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory or a GGUF file.

    Raises WeightsError, naming the file, when a piece is missing, broken or of an unknown kind.
    """
    found = locate(path)
    parts = read_gguf(found) if is_gguf(found) else read_directory(found)
    try:
        return Tokenizer(parts)
    except ChatTemplateError as error:
        raise WeightsError(f"{found}: {error}") from None
