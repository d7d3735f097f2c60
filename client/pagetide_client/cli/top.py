"""`pagetide top`: a live view of what each model version is doing, from the metrics port."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from pagetide_client.cli import arguments, terminal
from pagetide_client.cli.top_view import render
from pagetide_client.errors import ServerUnavailable
from pagetide_client.metrics import Snapshot, scrape
from pagetide_client.summary import Summary, summarize

WINDOW_S = 10.0

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
    """Watch requests, tokens per second, latencies and the block pool. Ctrl-C leaves."""
    monitor = Monitor(metrics_url or metrics_address(url), interval_s)
    if as_json:
        terminal.show(json.dumps([asdict(each) for each in monitor.read_twice()]) + "\n")
    elif once or not sys.stdout.isatty():
        terminal.console().print(view(monitor.read_twice(), monitor.url, 80))
    else:
        watch(monitor)


def metrics_address(url: str) -> str:
    """Where `pagetide serve` puts the metrics beside the gRPC address `url`: on the next port."""
    host, _, port = url.rpartition(":")
    return f"http://{host}:{int(port) + 1}/metrics"


class Monitor:
    """Reads the metrics now and then, and keeps the readings of the last `WINDOW_S`."""

    def __init__(self, url: str, interval_s: float) -> None:
        self.url = url
        self._interval_s = interval_s
        self._snapshots: deque[Snapshot] = deque()

    def read(self) -> list[Summary]:
        """The newest reading against the oldest in the window. Raises ServerUnavailable."""
        self._snapshots.append(scrape(self.url))
        newest = self._snapshots[-1]
        while len(self._snapshots) > 2 and newest.time_s - self._snapshots[0].time_s > WINDOW_S:
            self._snapshots.popleft()
        return summarize(self._snapshots[0], newest)

    def read_twice(self) -> list[Summary]:
        """One interval apart, so that there are rates."""
        self.read()
        self.wait()
        return self.read()

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


def view(summaries: list[Summary], url: str, width: int) -> RenderableType:
    if not summaries:
        return Text(f"no model reports metrics at {url}")
    return Group(*(render(summary, width) for summary in summaries))
