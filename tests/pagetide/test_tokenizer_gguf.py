"""Tokenizers rebuilt from GGUF metadata against the ones that the metadata was taken from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from texts import TEXTS
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from pagetide import tokenizer
from pagetide.weights import WeightsError

CORPUS = [text for text in TEXTS if text.strip()] * 3 + ["the quick brown fox jumps over the lazy dog " * 5]


def write_tokenizer(path: Path, kind: str, pre: str, tokens: list[str], **extra: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    for name, value in extra.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def sorted_tokens(backend: Backend) -> list[str]:
    vocabulary = backend.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level_original(pre: str) -> Backend:
    """A tokenizer as its makers publish it, trained on CORPUS."""
    backend = Backend(models.BPE(ignore_merges=pre == "llama-bpe"))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = {
        "gpt-2": words,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words]),
        "llama-bpe": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), plain]),
        "qwen2": pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), plain]
        ),
    }[pre]
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=alphabet,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_a_byte_level_tokenizer_comes_out_of_gguf_as_it_went_in(tmp_path: Path, pre: str) -> None:
    original = byte_level_original(pre)
    tokens = sorted_tokens(original)
    merges = [" ".join(pair) for pair in json.loads(original.to_str())["model"]["merges"]]
    kinds = [gguf.TokenType.CONTROL if i < 3 else gguf.TokenType.NORMAL for i in range(len(tokens))]
    path = write_tokenizer(
        tmp_path / "t.gguf", "gpt2", pre, tokens, token_merges=merges, token_types=kinds, add_bos_token=False
    )
    got = tokenizer.load(path)
    for text in TEXTS:
        assert got.encode(text) == original.encode(text).ids
        assert got.decode(got.encode(text)) == original.decode(
            original.encode(text).ids, skip_special_tokens=False
        )


@pytest.fixture(scope="module", params=[True, False], ids=["space prefix", "no space prefix"])
def sentencepiece_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A BPE model trained by SentencePiece itself, with Llama's options."""
    directory = tmp_path_factory.mktemp("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(directory / "m"),
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        add_dummy_prefix=request.param,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(str(directory / "m.model")), request.param


def test_a_sentencepiece_tokenizer_comes_out_of_gguf_as_it_went_in(
    tmp_path: Path, sentencepiece_model: Any
) -> None:
    original, prefix = sentencepiece_model
    ids = range(original.vocab_size())
    byte = gguf.TokenType.BYTE
    kinds = [gguf.TokenType.CONTROL if i in (1, 2) else byte if original.is_byte(i) else 1 for i in ids]
    path = write_tokenizer(
        tmp_path / "t.gguf",
        "llama",
        "default",
        [original.id_to_piece(i) for i in ids],
        token_scores=[original.get_score(i) for i in ids],
        token_types=kinds,
        bos_token_id=1,
        add_space_prefix=prefix,
    )
    got = tokenizer.load(path)
    for text in TEXTS[1:]:
        assert got.encode(text, add_special_tokens=False) == original.encode(text)
        assert got.encode(text) == [1, *original.encode(text)]
        assert got.decode(got.encode(text), skip_special_tokens=True) == text


def test_an_unknown_way_to_split_text_is_refused(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", "gpt2", "klingon", ["a"], token_merges=["a a"])
    with pytest.raises(WeightsError, match=r"t\.gguf has tokenizer.ggml.pre 'klingon'; known: .*gpt-2"):
        tokenizer.load(path)


def test_an_unknown_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", "rwkv", "default", ["a"])
    with pytest.raises(WeightsError, match=r"t\.gguf has tokenizer.ggml.model 'rwkv'; known: gpt2, llama"):
        tokenizer.load(path)


def test_a_gguf_file_without_merges_is_refused(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", "gpt2", "gpt-2", ["a"])
    with pytest.raises(WeightsError, match=r"t\.gguf lacks tokenizer.ggml.merges"):
        tokenizer.load(path)
