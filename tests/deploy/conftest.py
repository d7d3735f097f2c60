"""What the deployment files say, and promtool to check it with."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pagetide.metric_families import Families
from pagetide.metric_series import Labels

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


class _ComposeLoader(yaml.SafeLoader):
    """Knows Compose's `!reset` tag: the key is taken out of the file below, so it reads as null."""


_ComposeLoader.add_constructor("!reset", lambda loader, node: None)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def load_compose() -> Callable[[str], dict]:
    return lambda name: yaml.load((ROOT / name).read_text(), Loader=_ComposeLoader)


@pytest.fixture(scope="session")
def promtool() -> Callable[..., str]:
    """Runs promtool; a non-zero exit fails the test with what promtool said."""
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is not installed (Debian and Ubuntu: apt-get install prometheus)")

    def run(*arguments: str | Path) -> str:
        done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def rules() -> list[dict]:
    text = (DEPLOY / "prometheus/rules/pagetide.yml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


@pytest.fixture(scope="session")
def dashboards() -> dict[str, dict]:
    found = {
        path.name: json.loads(path.read_text()) for path in (DEPLOY / "grafana/dashboards").glob("*.json")
    }
    assert found
    return found


@pytest.fixture(scope="session")
def dashboard_expressions(dashboards: dict[str, dict]) -> dict[str, str]:
    """Every panel's PromQL by `panel title/refId`, with Grafana's variables put in as it does."""
    return {
        f"{panel['title']}/{target['refId']}": _fill_in(target["expr"])
        for board in dashboards.values()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }


def _fill_in(expression: str) -> str:
    for variable, value in {"$__rate_interval": "1m", "$model": "smollm2", "$version": ".*"}.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, f"unknown Grafana variable in {expression}"
    return expression


class _Series:
    """A metric that is declared and never moved."""

    def increment(self, value: float) -> None: ...

    def set(self, value: float) -> None: ...


class _Declared:
    """A registry that notes the kind of every series."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}

    def counter(self, name: str, text: str, labels: Labels) -> _Series:
        self.kinds[name] = "counter"
        return _Series()

    def gauge(self, name: str, text: str, labels: Labels) -> _Series:
        self.kinds[name] = "gauge"
        return _Series()


@pytest.fixture(scope="session")
def exported_series() -> dict[str, str]:
    """Every series a model version exports, with its kind, as the server itself declares them."""
    registry = _Declared()
    Families(registry)
    return registry.kinds
