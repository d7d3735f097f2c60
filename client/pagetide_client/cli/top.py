"""`pagetide top`: a live view of what each model version is doing, from the metrics port and its engine."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from pagetide_client.cli import arguments, terminal
from pagetide_client.cli.top_view import Seen, render
from pagetide_client.client import Client
from pagetide_client.errors import PagetideError, ServerUnavailable
from pagetide_client.metrics import Snapshot, scrape
from pagetide_client.options import Timeouts
from pagetide_client.summary import Summary, summarize

WINDOW_S = 10.0

ASK_S = 2.0
"""How long an engine may take to tell what it does: it does so between two steps."""

MetricsUrl = Annotated[
    str | None,
    typer.Option(
        envvar="PAGETIDE_METRICS_URL", help="The metrics address; the port after --url's if left out."
    ),
]


def top(
    url: arguments.Url = arguments.DEFAULT,
    metrics_url: MetricsUrl = None,
    interval_s: Annotated[float, typer.Option(min=0.1, help="Seconds between readings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one view and leave, for scripts.")] = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Watch requests, tokens per second, latencies, the scheduler and the block pool. Ctrl-C leaves."""
    with Client(url, timeouts=Timeouts(connect_s=ASK_S)) as client:
        monitor = Monitor(metrics_url or metrics_address(url), client, interval_s)
        if as_json:
            terminal.show(json.dumps([as_object(each) for each in monitor.read_twice()]) + "\n")
        elif once or not sys.stdout.isatty():
            terminal.console().print(view(monitor.read_twice(), monitor.url, 80))
        else:
            watch(monitor)


def as_object(seen: Seen) -> dict[str, Any]:
    told = seen.statistics.raw if seen.statistics else None
    return asdict(seen.summary) | {"statistics": told}


def metrics_address(url: str) -> str:
    """Where `pagetide serve` puts the metrics beside the gRPC address `url`: on the next port."""
    host, _, port = url.rpartition(":")
    return f"http://{host}:{int(port) + 1}/metrics"


class Monitor:
    """Reads the metrics now and then, and keeps the readings of the last `WINDOW_S`; asks the engines."""

    def __init__(self, url: str, client: Client, interval_s: float) -> None:
        self.url = url
        self._client = client
        self._interval_s = interval_s
        self._snapshots: deque[Snapshot] = deque()

    def read(self) -> list[Seen]:
        """The newest reading against the oldest in the window. Raises ServerUnavailable."""
        self._snapshots.append(scrape(self.url))
        newest = self._snapshots[-1]
        while len(self._snapshots) > 2 and newest.time_s - self._snapshots[0].time_s > WINDOW_S:
            self._snapshots.popleft()
        return [self._ask(summary) for summary in summarize(self._snapshots[0], newest)]

    def read_twice(self) -> list[Seen]:
        """One interval apart, so that there are rates."""
        self.read()
        self.wait()
        return self.read()

    def _ask(self, summary: Summary) -> Seen:
        """The engine may be stuck, or older than the question: the numbers are shown all the same."""
        try:
            return Seen(summary, self._client.statistics(model=summary.model, version=summary.version))
        except PagetideError as error:
            return Seen(summary, problem=str(error))

    def wait(self) -> None:
        time.sleep(self._interval_s)


def watch(monitor: Monitor) -> None:
    """Until Ctrl-C. A server that goes away shows as such, and again when it is back."""
    console = terminal.console()
    shown: RenderableType = view(monitor.read(), monitor.url, console.width)
    with Live(shown, console=console, screen=True, auto_refresh=False) as live:
        while True:
            monitor.wait()
            try:
                shown = view(monitor.read(), monitor.url, console.width)
                live.update(shown, refresh=True)
            except ServerUnavailable as error:
                live.update(Group(Text(str(error), style="red"), shown), refresh=True)


def view(versions: list[Seen], url: str, width: int) -> RenderableType:
    if not versions:
        return Text(f"no model reports metrics at {url}")
    return Group(*(render(seen, width) for seen in versions))
