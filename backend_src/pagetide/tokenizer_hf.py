"""The tokenizer of a Hugging Face checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from pagetide.checkpoint import WeightsError, read_optional_json
from pagetide.tokenizer_parts import TokenizerParts

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_ADDED_TOKEN_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_TEMPLATE_FILE = "chat_template.jinja"


def read_directory(path: Path) -> TokenizerParts:
    """Reads `tokenizer.json` and the small files beside it; a missing or broken one raises WeightsError.

    What surrounds a text (BOS, EOS) is `tokenizer.json`'s to say, as in transformers 5, whatever flags
    older configurations carry. A directory with only `tokenizer.model` is converted by transformers,
    which takes seconds to import.
    """
    config = read_optional_json(path / "tokenizer_config.json")
    special_tokens = _special_tokens(path, config)
    backend = _read_backend(path)
    _add_tokens(backend, config, special_tokens)
    return TokenizerParts(
        backend, special_tokens, _end_ids(path, backend, special_tokens), _chat_template(path, config)
    )


def _read_backend(path: Path) -> Backend:
    file = path / "tokenizer.json"
    if not file.exists():
        return _convert(path)
    try:
        return Backend.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise WeightsError(f"{file} is not a whole tokenizer: {error}; copy it again") from None


def _convert(path: Path) -> Backend:
    if not (path / "tokenizer.model").exists():
        raise WeightsError(
            f"{path / 'tokenizer.json'} is missing; a checkpoint directory needs its tokenizer"
        )
    from transformers import AutoTokenizer

    try:
        backend: Backend = AutoTokenizer.from_pretrained(path).backend_tokenizer
    except (OSError, ValueError, ImportError) as error:
        raise WeightsError(f"{path / 'tokenizer.model'} cannot be converted: {error}") from None
    return backend


def _special_tokens(path: Path, config: dict[str, Any]) -> dict[str, str]:
    values = read_optional_json(path / "special_tokens_map.json") | config
    return {name: _content(values[name]) for name in _SPECIAL_NAMES if values.get(name)}


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _add_tokens(backend: Backend, config: dict[str, Any], special_tokens: dict[str, str]) -> None:
    """Adds what `tokenizer_config.json` names beyond `tokenizer.json`, in the order of its ids."""
    listed = config.get("added_tokens_decoder") or {}
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    extra = [listed[index] for index in sorted(listed, key=int) if listed[index]["content"] not in known]
    backend.add_tokens([_added_token(token) for token in extra])
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token in special_tokens.values()
            if token not in known
        ]
    )


def _added_token(token: dict[str, Any]) -> AddedToken:
    flags = {name: bool(token[name]) for name in _ADDED_TOKEN_FLAGS if name in token}
    return AddedToken(token["content"], **flags)


def _end_ids(path: Path, backend: Backend, special_tokens: dict[str, str]) -> frozenset[int]:
    end = backend.token_to_id(special_tokens.get("eos_token", ""))
    generation = read_optional_json(path / "generation_config.json").get("eos_token_id")
    listed = generation if isinstance(generation, list) else [generation]
    return frozenset(index for index in (end, *listed) if index is not None)


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    file = path / _TEMPLATE_FILE
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template") or read_optional_json(path / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template
