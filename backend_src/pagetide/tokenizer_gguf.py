"""The tokenizer that a GGUF file describes in its metadata, rebuilt.

The file holds a vocabulary and, for byte-level BPE, its merges, but not how text is split before they
apply: only a name for that (`tokenizer.ggml.pre`), whose meaning each model's own tokenizer gives.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pagetide.checkpoint import WeightsError
from pagetide.gguf_reader import GgufFile, end_token_ids
from pagetide.tokenizer_parts import TokenizerParts, frame_with

_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "\u2581"
_SPECIAL_IDS = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "pad": "padding",
    "sep": "seperator",
    "mask": "mask",
}

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION_AND_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_END = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_END}"
)


def _words() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_and_words() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _words()])


def _pattern(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_SPLITS: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("default", "gpt-2", "olmo"), _words),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _digits_and_words),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe"), lambda: _pattern(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), lambda: _pattern(_QWEN2)),
    "tekken": lambda: _pattern(_TEKKEN),
}
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""Vocabularies in which a split that is a token stays whole, whatever the merges say."""
_NFC = frozenset({"qwen2", "deepseek-r1-qwen"})


def read_gguf(path: Path) -> TokenizerParts:
    """Raises WeightsError naming the file when it has no tokenizer, or one of an unknown kind."""
    file = GgufFile(path)
    values = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in file.metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    kind = values.get("model")
    if kind not in _BUILDERS or "tokens" not in values:
        known = ", ".join(sorted(_BUILDERS))
        raise WeightsError(f"{path} has tokenizer.ggml.model {kind!r}; known: {known}")
    special_tokens = _special_tokens(values)
    return TokenizerParts(
        _build(path, str(kind), values, special_tokens),
        special_tokens,
        frozenset(end_token_ids(file.metadata)),
        file.metadata.get("tokenizer.chat_template"),
    )


def _special_tokens(values: dict[str, Any]) -> dict[str, str]:
    ids = {name: values.get(f"{key}_token_id") for name, key in _SPECIAL_IDS.items()}
    return {f"{name}_token": values["tokens"][index] for name, index in ids.items() if index is not None}


def _build(path: Path, kind: str, values: dict[str, Any], special_tokens: dict[str, str]) -> Backend:
    try:
        backend = _BUILDERS[kind](values)
    except KeyError as error:
        raise WeightsError(
            f"{path} lacks tokenizer.ggml.{error.args[0]}, which its tokenizer needs"
        ) from None
    except ValueError as error:
        raise WeightsError(f"{path} {error}") from None
    _add_tokens(backend, values)
    bos = special_tokens.get("bos_token") if values.get("add_bos_token", _adds_bos(kind, values)) else None
    frame_with(backend, bos, special_tokens.get("eos_token") if values.get("add_eos_token") else None)
    return backend


def _adds_bos(kind: str, values: dict[str, Any]) -> bool:
    """What holds for files older than the flag."""
    return kind == "llama" or values.get("pre") in _WHOLE_WORDS_FIRST


def _add_tokens(backend: Backend, values: dict[str, Any]) -> None:
    vocabulary = backend.get_vocab(with_added_tokens=False)
    kinds = zip(values["tokens"], values.get("token_type", ()), strict=False)
    marked = [
        (token, kind) for token, kind in kinds if kind in (_CONTROL, _USER_DEFINED) and token in vocabulary
    ]
    backend.add_tokens(
        [AddedToken(token, special=kind == _CONTROL, normalized=False) for token, kind in marked]
    )


def _byte_level(values: dict[str, Any]) -> Backend:
    """Byte-level BPE (GPT-2 and after)."""
    split = values.get("pre", "default")
    if split not in _SPLITS:
        raise ValueError(f"has tokenizer.ggml.pre {split!r}; known: {', '.join(sorted(_SPLITS))}")
    merges = [tuple(merge.split(" ", 1)) for merge in values["merges"]]
    vocabulary = {token: index for index, token in enumerate(values["tokens"])}
    backend = Backend(models.BPE(vocabulary, merges, ignore_merges=split in _WHOLE_WORDS_FIRST))
    backend.pre_tokenizer = _SPLITS[split]()
    backend.decoder = decoders.ByteLevel()
    if split in _NFC:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(values: dict[str, Any]) -> Backend:
    """SentencePiece BPE: spaces are written as a letter, unknown characters as bytes."""
    tokens = [_SPACE * len(token) if not token.strip(" ") else token for token in values["tokens"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[values.get("unknown_token_id", 0)]
    merges = _merges(tokens, values)
    backend = Backend(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    to_letter = normalizers.Replace(" ", _SPACE)
    to_text = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if values.get("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), to_letter])
        backend.decoder = decoders.Sequence([*to_text, decoders.Strip(" ", 1, 0)])
    else:
        backend.normalizer = to_letter
        backend.decoder = decoders.Sequence(to_text)
    return backend


def _merges(tokens: list[str], values: dict[str, Any]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, by the order in which SentencePiece would.

    It matches user-defined tokens before all else, then merges the pair that makes the best-scored
    token (Kudo and Richardson 2018, arXiv:1808.06226).
    """
    kinds, scores = values.get("token_type") or [0] * len(tokens), values["scores"]
    order = sorted(range(len(tokens)), key=lambda i: (kinds[i] != _USER_DEFINED, -scores[i]))
    known = frozenset(tokens)
    return [
        (token[:cut], token[cut:])
        for token in map(tokens.__getitem__, order)
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in known and token[cut:] in known
    ]


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}
