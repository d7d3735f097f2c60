"""Tokenizers and chat templates against transformers', on text of every kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from texts import TEXTS
from tiny_checkpoints import CHAT_TEMPLATE, SPECIAL_TOKENS, save_byte_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from pagetide import tokenizer
from pagetide.chat_template import ChatTemplate, ChatTemplateError
from pagetide.tokenizer import Tokenizer
from pagetide.weights import WeightsError

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
