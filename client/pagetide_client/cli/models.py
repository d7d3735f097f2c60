"""`pagetide models`: what the server has, what state it is in, and why."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from pagetide_client.cli import arguments, terminal
from pagetide_client.client import Client
from pagetide_client.results import ModelVersion

_POLL_S = 0.1


def models(
    url: arguments.Url = arguments.DEFAULT,
    wait_s: Annotated[float, typer.Option(min=0, help="Seconds to wait for versions that load.")] = 0,
    as_json: arguments.AsJson = False,
) -> None:
    """List models and versions with their state; for one that failed, the reason."""
    with arguments.connect(url) as client:
        found = settled(client, wait_s)
    if as_json:
        terminal.show(json.dumps([asdict(model) for model in found], ensure_ascii=False) + "\n")
    elif found:
        terminal.console().print(table(found))
    else:
        terminal.note(f"no models at {url}; `pagetide add CHECKPOINT --name NAME` puts one there")


def settled(client: Client, wait_s: float) -> list[ModelVersion]:
    """The models once none is loading any more, or as they are after `wait_s`."""
    deadline_s = time.monotonic() + wait_s
    found = client.models()
    while time.monotonic() < deadline_s and any(model.state == "LOADING" for model in found):
        time.sleep(_POLL_S)
        found = client.models()
    return found


def table(found: list[ModelVersion]) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("MODEL", "VERSION", "STATE", "REASON"):
        shown.add_column(heading, overflow="fold")
    for model in found:
        state = Text(model.state, style="green" if model.ready else "red")
        shown.add_row(Text(model.name), model.version, state, Text(_summary(model.reason)))
    return shown


def _summary(reason: str) -> str:
    """Its first paragraph in one line: the message, without the places in the server's code."""
    return " ".join(reason.partition("\n\n")[0].split())
