"""`pagetide models` shows why a version is not ready, in one line whatever the server wrote."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

from client_world import run_pagetide
from rich.console import Console

from pagetide_client import ModelVersion
from pagetide_client.cli.models import table

BROKEN = ModelVersion(
    "broken", "3", "UNAVAILABLE", "Internal: model.safetensors is cut off\n  at byte 12 [red]\n\nAt:\n x.py"
)


def drawn(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table([ModelVersion("good", "1", "READY", ""), BROKEN]))
    return out.getvalue()


def test_a_reason_is_one_line_and_taken_literally() -> None:
    heading, good, broken = drawn(200).splitlines()
    assert heading.split() == ["MODEL", "VERSION", "STATE", "REASON"]
    assert good.split() == ["good", "1", "READY"]
    assert broken.split(maxsplit=3)[:3] == ["broken", "3", "UNAVAILABLE"]
    assert broken.rstrip().endswith("Internal: model.safetensors is cut off at byte 12 [red]")


def test_a_narrow_terminal_folds_the_reason_and_loses_nothing() -> None:
    folded = [line[30:].rstrip() for line in drawn(50).splitlines()[2:]]
    assert " ".join(folded) == "Internal: model.safetensors is cut off at byte 12 [red]"
    assert len(folded) > 1


def test_waiting_ends_when_nothing_loads_any_more(scripted: Callable[..., str]) -> None:
    url = scripted(states=["LOADING", "LOADING", "UNAVAILABLE"])
    (waited,) = json.loads(run_pagetide("models", "--json", "--wait-s", "60", "--url", url).stdout)
    assert waited["state"] == "UNAVAILABLE"


def test_not_waiting_shows_what_is(scripted: Callable[..., str]) -> None:
    url = scripted(states=["LOADING", "READY"])
    (shown,) = json.loads(run_pagetide("models", "--json", "--url", url).stdout)
    assert shown["state"] == "LOADING"
