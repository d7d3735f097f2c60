"""The lock files pin every package once for each Python, and nothing but packages."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ("serve", "cuda", "dev", "wheels")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def requirements(*locks: str) -> list[Requirement]:
    lines = [line for lock in locks for line in (ROOT / f"requirements/{lock}.txt").read_text().splitlines()]
    return [Requirement(line) for line in lines if not line.startswith("#")]


def pinned(python: str, *locks: str) -> dict[str, str]:
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    chosen = [each for each in requirements(*locks) if not each.marker or each.marker.evaluate(environment)]
    counts = Counter(canonicalize_name(each.name) for each in chosen)
    assert not [name for name, count in counts.items() if count > 1]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in chosen}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_is_an_exact_version_of_a_named_package(lock: str) -> None:
    for each in requirements(lock):
        assert re.fullmatch(r"==[\w.]+", str(each.specifier)), each
        assert not each.url
        assert not each.extras


@pytest.mark.parametrize("python", PYTHONS)
def test_what_the_project_asks_for_is_locked_in_a_version_it_accepts(python: str) -> None:
    locked = pinned(python, "serve", "cuda", "dev")
    for each in project_requirements():
        if each.marker and not each.marker.evaluate({"python_version": python}):
            continue
        version = locked.get(canonicalize_name(each.name))
        assert version is not None, f"{each.name} is not locked for Python {python}"
        assert each.specifier.contains(version), f"{each} is locked at {version}"


def project_requirements() -> list[Requirement]:
    text = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(r"^(\w+) = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    locked = {"dependencies", "serve", "cuda", "dev", "loadtest"}
    return [
        Requirement(each) for name, body in lists if name in locked for each in re.findall(r'"([^"]+)"', body)
    ]


@pytest.mark.parametrize("python", PYTHONS)
def test_numpy_stays_below_two_which_the_stub_reads_wrong(python: str) -> None:
    assert pinned(python, "serve")["numpy"].startswith("1.26.")
