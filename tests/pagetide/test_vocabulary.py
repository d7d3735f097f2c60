"""The bytes of tokens, which grammars are matched against, are what the tokenizer decodes them to."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentencepiece_checkpoints import sentencepiece_backend
from texts import TEXTS
from tiny_checkpoints import SPECIAL_TOKENS
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from pagetide import tokenizer
from pagetide.tokenizer import Tokenizer
from pagetide.tokenizer_hf import read_directory
from pagetide.vocabulary import token_bytes


@pytest.fixture(scope="module", params=["smollm2", "bytes"])
def byte_level(request: pytest.FixtureRequest, smollm2_path: Path, tiny_llama: Path) -> Tokenizer:
    return tokenizer.load(smollm2_path if request.param == "smollm2" else tiny_llama)


def joined(vocabulary: list[bytes], ids: list[int]) -> bytes:
    return b"".join(vocabulary[index] for index in ids)


@pytest.mark.parametrize("text", TEXTS)
def test_a_byte_level_tokenizers_tokens_are_the_texts_bytes(byte_level: Tokenizer, text: str) -> None:
    vocabulary = byte_level.vocabulary(byte_level.vocab_size)
    plain = text if not any(token in text for token in SPECIAL_TOKENS) else ""
    assert joined(vocabulary, byte_level.encode(plain, add_special_tokens=False)) == plain.encode()


@pytest.mark.parametrize("text", TEXTS)
def test_a_sentencepiece_tokenizers_tokens_are_the_texts_bytes(text: str) -> None:
    backend = sentencepiece_backend()
    vocabulary = token_bytes(backend, backend.get_vocab_size())
    assert joined(vocabulary, backend.encode(text, add_special_tokens=False).ids) == text.encode()


def test_every_token_of_the_default_model_decodes_to_its_bytes(smollm2_path: Path) -> None:
    smollm2 = tokenizer.load(smollm2_path)
    vocabulary = smollm2.vocabulary(smollm2.vocab_size)
    for index, token in enumerate(vocabulary):
        shown = "" if index in smollm2.special_ids else smollm2.decode([index])
        assert token.decode(errors="replace") == shown


def test_special_tokens_and_padding_are_no_text(tiny_llama: Path) -> None:
    vocabulary = token_bytes(read_directory(tiny_llama).backend, 300)
    assert len(vocabulary) == 300
    assert vocabulary[: len(SPECIAL_TOKENS)] == [b""] * len(SPECIAL_TOKENS)
    assert all(vocabulary[len(SPECIAL_TOKENS) : 259])
    assert vocabulary[259:] == [b""] * 41


def test_a_model_with_fewer_logits_than_tokens_has_only_those(tiny_llama: Path) -> None:
    assert len(token_bytes(read_directory(tiny_llama).backend, 100)) == 100


def test_added_tokens_are_text_as_it_stands(tiny_llama: Path) -> None:
    backend = read_directory(tiny_llama).backend
    backend.add_tokens([AddedToken("<tool call>é", special=False)])
    assert token_bytes(backend, 260)[259] == "<tool call>é".encode()


def test_another_way_to_decode_is_refused() -> None:
    backend = Backend(models.BPE({"a": 0}, []))
    with pytest.raises(ValueError, match="its tokenizer decodes by nothing"):
        token_bytes(backend, 1)
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="its tokenizer decodes by WordPiece"):
        token_bytes(backend, 1)
