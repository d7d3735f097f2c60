"""Tokenizers and chat templates against transformers', on text of every kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from tiny_checkpoints import CHAT_TEMPLATE, SPECIAL_TOKENS, save_byte_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from pagetide import tokenizer
from pagetide.chat_template import ChatTemplate, ChatTemplateError
from pagetide.tokenizer import Tokenizer
from pagetide.weights import WeightsError

TEXTS = (
    "",
    " ",
    "   ",
    "\n",
    "Hello world",
    "  two  spaces   and\ttabs\n\nnewlines \n \n x",
    "naïve café Ünïcödé ß",
    "日本語のテキスト 漢字かな",
    "中文分词测试，标点。",  # noqa: RUF001
    "한국어 텍스트",
    "العربية נעברית हिन्दी ไทย",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 ❤️",
    "def f(x):\n    return x ** 2  # comment\n\n\tif a != b:\n",
    "I'm you're it's we'll THEY'D 'tis",
    "a<|endoftext|>b<|im_start|>user\nHi<|im_end|>\n",
    "almost <|im_start |> special <|im_",
    "e\u0301 combining",
    "x" * 200,
    "\u200b\u00a0\u3000",
    "URL https://a.b/c?d=e&f=g#h",
    "!!!??? ... --- === ***",
    "\x00\x01\x7f",
    "MixedCASE camelCase snake_case kebab-case",
    "\r\n windows \r\n",
    "1st 2nd 3.14159 1,000,000 100% 2026-11-29",
)
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is <b>1+1</b>?\n"},
    {"role": "assistant", "content": "2 é 😀"},
    {"role": "user", "content": "And {{ 2+2 }}?"},
]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return tokenizer.load(smollm2_path)


@pytest.fixture(scope="module")
def smollm2_reference(smollm2_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_encodes_and_decodes_as_transformers_does(
    smollm2: Tokenizer, smollm2_reference: Any, text: str
) -> None:
    ids = smollm2.encode(text)
    assert ids == smollm2_reference.encode(text)
    assert ids == smollm2.encode(text, add_special_tokens=False)
    assert smollm2.decode(ids) == text
    assert smollm2.decode(ids, skip_special_tokens=True) == smollm2_reference.decode(
        ids, skip_special_tokens=True
    )


def test_smollm2_splits_digits_of_every_script_one_by_one(smollm2: Tokenizer) -> None:
    """transformers' conversion from GGUF forgets this split; the model was trained with it."""
    assert smollm2.encode("२०२५") == [i for digit in "२०२५" for i in smollm2.encode(digit)]


def test_smollm2_knows_its_special_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.eos_token_ids == {2}
    assert smollm2.special_ids == set(range(17))
    assert smollm2.encode("<|im_end|>") == [2]


@pytest.mark.parametrize("messages", [CHAT, CHAT[1:], CHAT[:2]])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_smollm2_chat_prompts_are_transformers_prompts(
    smollm2: Tokenizer, smollm2_reference: Any, messages: list[dict[str, str]], add_generation_prompt: bool
) -> None:
    got = smollm2.apply_chat_template(messages, add_generation_prompt=add_generation_prompt)
    want = smollm2_reference.apply_chat_template(
        messages, add_generation_prompt=add_generation_prompt, tokenize=False
    )
    assert got == want


@pytest.mark.parametrize("text", TEXTS)
def test_a_directory_encodes_as_transformers_does(tiny_llama: Path, text: str) -> None:
    from transformers import AutoTokenizer

    got, want = tokenizer.load(tiny_llama), AutoTokenizer.from_pretrained(tiny_llama)
    ids = got.encode(text)
    assert ids == want.encode(text)
    assert got.decode(ids, skip_special_tokens=True) == want.decode(ids, skip_special_tokens=True)
    assert got.eos_token_ids == {want.eos_token_id}


def change_config(path: Path, **changes: Any) -> Path:
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return path


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "copy"))


@pytest.mark.parametrize("frame", [["<|endoftext|>", "$A"], ["$A", "<|im_end|>"], ["$A"]])
@pytest.mark.parametrize("flag", [True, False])
def test_a_directory_adds_bos_and_eos_as_its_tokenizer_says(copy: Path, frame: list[str], flag: bool) -> None:
    from transformers import AutoTokenizer

    backend = Backend.from_file(str(copy / "tokenizer.json"))
    ends = [(token, i) for i, token in enumerate(SPECIAL_TOKENS)]
    backend.post_processor = processors.TemplateProcessing(single=frame, special_tokens=ends)
    backend.save(str(copy / "tokenizer.json"))
    change_config(copy, add_bos_token=flag, add_eos_token=flag)
    got, want = tokenizer.load(copy), AutoTokenizer.from_pretrained(copy)
    for add in (True, False):
        assert got.encode("hi", add) == want.encode("hi", add_special_tokens=add)


def test_generation_config_adds_end_tokens(copy: Path) -> None:
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert tokenizer.load(copy).eos_token_ids == {1, 2}


@pytest.mark.parametrize(
    "where", ["chat_template.jinja", "tokenizer_config.json", "a list", "chat_template.json"]
)
def test_a_chat_template_is_found_wherever_checkpoints_keep_it(tmp_path: Path, where: str) -> None:
    save_byte_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").rename(tmp_path / "kept")
    if where == "chat_template.jinja":
        (tmp_path / "kept").rename(tmp_path / where)
    elif where == "tokenizer_config.json":
        change_config(tmp_path, chat_template=CHAT_TEMPLATE)
    elif where == "a list":
        named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHAT_TEMPLATE}]
        change_config(tmp_path, chat_template=named)
    else:
        (tmp_path / where).write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    prompt = tokenizer.load(tmp_path).apply_chat_template(CHAT[1:2])
    assert prompt == "<|im_start|>user\nWhat is <b>1+1</b>?\n<|im_end|>\n"


def test_a_model_without_a_chat_template_says_so(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.load(tmp_path).apply_chat_template(CHAT)


def test_a_chat_template_that_does_not_compile_is_refused_at_load(copy: Path) -> None:
    (copy / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(WeightsError, match="copy: the chat template is not valid"):
        tokenizer.load(copy)


TEMPLATES = (
    "{% for m in messages %}\n  {% if m.role == 'user' %}\n {{ m.content }}\n{% endif %}\n{% endfor %}",
    "{{ bos_token }}{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "{%- for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m['content'] }}{% endfor %}",
    "{{ eos_token }}{{ pad_token }}{{ unk_token is defined }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% if tools %}{{ tools | tojson }}{% else %}none{% endif %}{{ enable_thinking is defined }}",
    "{{ strftime_now('%Y') | length }}{{ dict(a=1) }}",
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_render_as_transformers_renders_them(copy: Path, template: str) -> None:
    from transformers import AutoTokenizer

    (copy / "chat_template.jinja").write_text(template)
    got, want = tokenizer.load(copy), AutoTokenizer.from_pretrained(copy)
    tools = [{"type": "function", "function": {"name": "f<x>", "parameters": {}}}]
    for extra in ({}, {"tools": tools, "enable_thinking": False}):
        assert got.apply_chat_template(CHAT, **extra) == want.apply_chat_template(
            CHAT, tokenize=False, **extra
        )


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].content.nothing.there }}",
    ],
)
def test_a_template_that_refuses_or_escapes_is_an_error_of_the_messages(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="the chat template refused the messages"):
        ChatTemplate(source, {}).render(CHAT)


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
    from tokenizers import Regex

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
