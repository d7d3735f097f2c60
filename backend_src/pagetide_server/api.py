"""The few questions the launcher asks a running server, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class ModelState:
    """One version of one model as the repository index tells it; `reason` says why it is not ready."""

    name: str
    version: str
    state: str
    reason: str

    @property
    def ready(self) -> bool:
        return self.state == "READY"


def answers(base_url: str, path: str, timeout_s: float = 2.0) -> bool:
    """Whether the server answers 200 there."""
    try:
        with _opener.open(base_url + path, timeout=timeout_s) as response:
            return int(response.status) == 200
    except (OSError, urllib.error.URLError, ValueError):
        return False


def repository_index(base_url: str, timeout_s: float = 5.0) -> list[ModelState]:
    """Every model version the server knows. Raises OSError when it does not answer."""
    request = urllib.request.Request(base_url + "/v2/repository/index", data=b"{}", method="POST")
    with _opener.open(request, timeout=timeout_s) as response:
        entries = json.load(response)
    return [_state(entry) for entry in entries]


def _state(entry: dict[str, str]) -> ModelState:
    return ModelState(
        entry["name"], entry.get("version", ""), entry.get("state", ""), entry.get("reason", "")
    )
