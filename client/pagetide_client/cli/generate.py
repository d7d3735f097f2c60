"""`pagetide generate`: one completion, to the terminal or a pipe."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from pagetide_client.cli import arguments, terminal
from pagetide_client.client import Stream
from pagetide_client.results import Result


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to complete; - reads it from stdin.")],
    max_tokens: arguments.MaxTokens = 256,
    temperature: arguments.Temperature = None,
    top_p: arguments.TopP = None,
    top_k: arguments.TopK = None,
    min_p: arguments.MinP = None,
    seed: arguments.Seed = None,
    n: arguments.N = None,
    stop: arguments.Stop = None,
    url: arguments.Url = arguments.DEFAULT,
    model: arguments.Model = None,
    version: arguments.Version = "",
    timeout_s: arguments.TimeoutS = None,
    stream: Annotated[bool, typer.Option(help="Show text as it comes, or all of it at the end.")] = True,
    as_json: arguments.AsJson = False,
    stats: Annotated[
        bool | None, typer.Option(help="Tokens and speed, on stderr; on a terminal if left out.")
    ] = None,
) -> None:
    """Complete a prompt."""
    parameters = arguments.sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        n=n,
        stop=stop or None,
    )
    text = read_stdin() if prompt == "-" else prompt
    with arguments.connect(url, model, timeout_s) as client:
        if stream and not as_json and (n or 1) == 1:
            result = show_stream(client.stream(text, version=version, **parameters))
        else:
            result = client.generate(text, version=version, details=as_json, **parameters)
            terminal.show(to_json(result) if as_json else to_text(result))
    if sys.stderr.isatty() if stats is None else stats:
        sys.stderr.write(f"{stats_line(result)}\n")


def read_stdin() -> str:
    """All of stdin without its last line's end. Raises typer.BadParameter unless it is UTF-8."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"stdin is not UTF-8: byte {error.start} can't be read") from None


def show_stream(stream: Stream) -> Result:
    """Prints deltas as they come, and ends the line also when it is interrupted."""
    with stream, terminal.line() as show:
        for delta in stream:
            show(delta.text)
    return stream.result


def to_text(result: Result) -> str:
    """Several samples are numbered."""
    if len(result.samples) == 1:
        return f"{result.text}\n"
    return "".join(f"[{index}] {sample.text}\n" for index, sample in enumerate(result.samples))


def to_json(result: Result) -> str:
    return json.dumps(asdict(result), ensure_ascii=False) + "\n"


def stats_line(result: Result) -> str:
    parts = (
        f"{result.num_input_tokens} prompt tokens",
        f"{result.num_output_tokens} tokens in {result.total_s:.2f} s",
        f"TTFT {result.ttft_s * 1000:.0f} ms",
        f"{result.tokens_per_s:.1f} tok/s",
        result.finish_reason,
    )
    return ", ".join(parts)
