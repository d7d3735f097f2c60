"""Options that several commands share, and the client they describe."""

from __future__ import annotations

from typing import Annotated

import typer

from pagetide_client.client import Client
from pagetide_client.options import DEFAULT_URL, Sampling, Timeouts, address


def _address(url: str) -> str:
    try:
        return address(url)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Url = Annotated[
    str, typer.Option(envvar="PAGETIDE_URL", callback=_address, help="The server's gRPC address.")
]
Model = Annotated[
    str | None, typer.Option(envvar="PAGETIDE_MODEL", help="The model; the only ready one if left out.")
]
Version = Annotated[str, typer.Option(help="The model's version; the newest if left out.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy: the default unless another sampling option is given.")
]
TopP = Annotated[float | None, typer.Option(help="Keep the likeliest tokens that add up to this.")]
TopK = Annotated[int | None, typer.Option(help="Keep this many of the likeliest tokens.")]
MinP = Annotated[float | None, typer.Option(help="Drop tokens less likely than this share of the likeliest.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.")]
N = Annotated[int | None, typer.Option("--n", min=1, help="Samples of the prompt, side by side.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")]
TimeoutS = Annotated[float | None, typer.Option(help="Seconds for the whole answer.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULT = DEFAULT_URL


def connect(url: str, model: str | None = None, timeout_s: float | None = None) -> Client:
    return Client(url, model=model, timeouts=Timeouts(total_s=timeout_s))


def sampling(**given: object) -> Sampling:
    """The parameters that were given; the server has defaults for the others.

    Without any that shapes a random draw the output is greedy: a terminal wants the likeliest text.
    """
    if all(given.get(name) is None for name in ("temperature", "top_p", "top_k", "min_p", "seed", "n")):
        given["temperature"] = 0.0
    return {name: value for name, value in given.items() if value is not None}  # type: ignore[return-value]
