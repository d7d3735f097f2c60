"""What an output must follow, as a client says it. Strings only; nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class GrammarKind(str, Enum):
    """How a grammar is written; the values are vLLM's names."""

    JSON = "json"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True, slots=True)
class Grammar:
    """`text` is a JSON schema, a regular expression, EBNF (also for a choice) or a structural tag.

    `any_whitespace` False writes JSON without spaces and line breaks. `source` is the parameter that the
    client gave; two grammars of the same content are equal whatever it was called.
    """

    kind: GrammarKind
    text: str
    any_whitespace: bool = True
    source: str = field(default="", compare=False)

    @property
    def is_json(self) -> bool:
        """The whole output is one JSON value."""
        return self.kind in (GrammarKind.JSON, GrammarKind.JSON_OBJECT)


OBJECTS = ("structured_outputs", "guided_decoding")
"""Parameters that are objects, or their JSON text, with one field named as a kind. The second is older."""

FLAT = {f"guided_{kind.value}": kind for kind in GrammarKind if kind is not GrammarKind.STRUCTURAL_TAG}
"""vLLM's oldest names, one parameter each."""

PARAMETERS = (*OBJECTS, *FLAT)


class TooManyGrammarsError(RuntimeError):
    """No grammar can be taken now; the message says why."""
