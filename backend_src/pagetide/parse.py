"""From a request's tensors and parameters to what the engine needs, or an error that names what is wrong.

Inputs and their meaning are those of the Triton vLLM backend (docs/design.md, "Contracts"); docs/api.md
lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pagetide.grammar import Grammar
from pagetide.model_io import OPTIONS, RETURNED
from pagetide.parse_limits import RequestLimits
from pagetide.parse_prompt import Prompt, parse_prompt
from pagetide.parse_sampling import load_object, sampling_params
from pagetide.parse_structured import check_ends, take_grammar
from pagetide.parse_tensors import Tensors, num_bytes, own_parameters, single, single_bytes
from pagetide.parse_terms import Terms, header_tenant, take_terms
from pagetide.parse_values import InvalidArgumentError, boolean
from pagetide.request import SamplingParams

_TRITONS_OWN = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
_TRITONS_PREFIX = "triton_"


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """`source` names the input that held the prompt.

    `echo` is the text before the output in the first response: the prompt, or nothing. `grammar` is what
    the output must follow.
    """

    prompt: Prompt
    echo: str
    stream: bool
    returned: frozenset[str]
    params: SamplingParams
    terms: Terms = field(default_factory=Terms)
    source: str = "text_input"
    num_samples: int = 1
    grammar: Grammar | None = None


def parse_request(tensors: Tensors, parameters: str, limits: RequestLimits) -> ParsedRequest:
    """`parameters` is the JSON object of the request's parameters. Raises InvalidArgumentError."""
    limits.check_bytes(num_bytes(tensors) + len(parameters))
    given = load_object("parameters", parameters) if parameters else {}
    own = {name: value for name, value in given.items() if _is_ours(name)}
    options = {name: _option(name, tensors, own) for name in OPTIONS}
    source, prompt = parse_prompt(tensors, limits.max_prompt_bytes, limits.vocab_size)
    returned = frozenset(name for name in RETURNED if options[f"return_{name}"])
    asked = _asked(tensors, own)
    terms = _terms(asked, parameters, limits.tenant_header)
    grammar = take_grammar(asked, limits.max_grammar_bytes)
    num_samples = limits.take_n(asked)
    params = limits.check_params(sampling_params(asked, limits.vocab_size), asked)
    _check_samples_differ(num_samples, params)
    check_ends(grammar, params)
    if "cumulative_logprob" in returned and params.logprobs is None:
        params = replace(params, logprobs=0)
    if "prompt_logprobs" not in returned:
        params = replace(params, prompt_logprobs=None)
    echo = _echo(prompt, options)
    stream = bool(options["stream"])
    return ParsedRequest(prompt, echo, stream, returned, params, terms, source, num_samples, grammar)


def _terms(asked: dict[str, Any], parameters: str, header: str) -> Terms:
    """Where no header says whose the request is, it says so itself."""
    if not header:
        return take_terms(asked)
    tenant = header_tenant(parameters, header)
    for own in [each for each in asked if each.lower() == header.lower()]:
        del asked[own]
    if asked.get("tenant") is not None:
        told = f"tenant is {asked['tenant']!r}; leave it out, as the header {header} says it here"
        raise InvalidArgumentError(told)
    return replace(take_terms(asked), tenant=tenant)


def _is_ours(name: str) -> bool:
    return name not in _TRITONS_OWN and not name.startswith(_TRITONS_PREFIX)


def _option(name: str, tensors: Tensors, parameters: dict[str, Any]) -> bool | None:
    """The option's value, taken out of `parameters`; None if it was not given."""
    value = parameters.pop(name, None)
    if name in tensors:
        value = single(name, tensors[name])
    return None if value is None else boolean(name, value)


def _asked(tensors: Tensors, parameters: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters and terms.

    An input of the parameter's own comes before the JSON of `sampling_parameters`, and with that JSON the
    request's parameters don't count.
    """
    in_parameters = parameters.pop("sampling_parameters", None)
    asked = parameters
    if "sampling_parameters" in tensors:
        text = single_bytes("sampling_parameters", tensors["sampling_parameters"])
        asked = load_object("sampling_parameters", text)
    elif isinstance(in_parameters, str):
        asked = load_object("sampling_parameters", in_parameters)
    return asked | own_parameters(tensors)


def _check_samples_differ(num_samples: int, params: SamplingParams) -> None:
    if num_samples > 1 and params.temperature == 0:
        raise InvalidArgumentError(
            f"n is {num_samples}; with temperature 0 it must be 1, as all samples would be the same"
        )


def _echo(prompt: Prompt, options: Mapping[str, bool | None]) -> str:
    excluded = options["exclude_input_in_output"]
    if options["stream"] and excluded is False:
        raise InvalidArgumentError(
            "exclude_input_in_output is false; with stream it must be true or left out, as a stream holds "
            "only the output"
        )
    return prompt if isinstance(prompt, str) and not options["stream"] and not excluded else ""
