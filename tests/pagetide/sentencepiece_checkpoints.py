"""A tiny checkpoint whose tokenizer is built as Gemma's: spaces as a letter, bytes for what has no token."""

from __future__ import annotations

from pathlib import Path

from tiny_checkpoints import make_checkpoint
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

SPECIAL_TOKENS = ("<pad>", "<bos>", "<end_of_turn>")
VOCAB_SIZE = 384
"""More than there are tokens: the model's logits are padded."""

_SPACE = "\u2581"
_PIECES = (
    "<unk>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *"abcdefghijklmnopqrstuvwxyz0123456789",
    *'{}[]":,.-_\\',
    *(_SPACE, "é", "日", f"{_SPACE}{_SPACE}", '":', '{"', '",', f"{_SPACE}a", "es", "the", '"}', '{"name'),
)
_MERGES = ((_SPACE, _SPACE), ('"', ":"), ("{", '"'), ('"', ","), (_SPACE, "a"), ("e", "s"), ('"', "}"))


def sentencepiece_backend() -> Tokenizer:
    vocabulary = {piece: index for index, piece in enumerate((*SPECIAL_TOKENS, *_PIECES))}
    backend = Tokenizer(
        models.BPE(vocabulary, list(_MERGES), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    return backend


def make_sentencepiece_checkpoint(path: Path) -> Path:
    from transformers import PreTrainedTokenizerFast

    make_checkpoint(path, vocab_size=VOCAB_SIZE)
    PreTrainedTokenizerFast(
        tokenizer_object=sentencepiece_backend(),
        bos_token="<bos>",
        eos_token="<end_of_turn>",
        pad_token="<pad>",
    ).save_pretrained(path)
    return path
