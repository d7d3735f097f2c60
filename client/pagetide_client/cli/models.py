"""`pagetide models`: what the server has, what state it is in, and why."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from pagetide_client.cli import arguments, terminal
from pagetide_client.results import ModelVersion


def models(url: arguments.Url = arguments.DEFAULT, as_json: arguments.AsJson = False) -> None:
    """List models and versions with their state; for one that failed, the reason."""
    with arguments.connect(url) as client:
        found = client.models()
    if as_json:
        terminal.show(json.dumps([asdict(model) for model in found], ensure_ascii=False) + "\n")
    elif found:
        terminal.console().print(table(found))
    else:
        terminal.note(f"no models at {url}; `pagetide add CHECKPOINT --name NAME` puts one there")


def table(found: list[ModelVersion]) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("MODEL", "VERSION", "STATE", "REASON"):
        shown.add_column(heading, overflow="fold")
    for model in found:
        state = Text(model.state, style="green" if model.ready else "red")
        shown.add_row(Text(model.name), model.version, state, Text(" ".join(model.reason.split())))
    return shown
