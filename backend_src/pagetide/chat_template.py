"""A model's chat template: untrusted Jinja, rendered in a sandbox as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]

_REFUSALS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template's own code raises over messages that it was not written for."""


class ChatTemplateError(ValueError):
    """The model has no chat template, it is not valid, or it refused the messages."""


class ChatTemplate:
    """Compiled once. `special_tokens` (`bos_token` and so on) are variables of every rendering."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(f"the chat template is not valid: {error}") from None

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = False, **variables: Any
    ) -> str:
        """The prompt for `messages`; `tools`, `documents` and whatever else the template reads may be given.

        Raises ChatTemplateError when the template refuses them.
        """
        defaults = {"tools": None, "documents": None, **self._special_tokens}
        try:
            return self._template.render(
                defaults | variables, messages=messages, add_generation_prompt=add_generation_prompt
            )
        except _REFUSALS as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error}") from None


class _Generation(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it only shows its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
