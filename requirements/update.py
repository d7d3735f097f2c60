"""Writes the lock files from pyproject.toml: one resolution a Python version, merged with markers.

    .venv/bin/python requirements/update.py python3.10 python3.11 python3.12 python3.13

torch is pinned by name and not resolved: its CUDA and CPU builds differ in what they need, and each names
exact versions of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
LOCKS = {"serve": ["serve"], "cuda": ["cuda"], "dev": ["dev", "loadtest"]}
"""Lock file → the extras it adds to the files before it."""
BUILD = ["setuptools==80.9.0"]

Report = dict[str, Any]
Versions = dict[str, dict[str, str]]
"""Package name → Python version → package version."""


def main(pythons: list[str]) -> None:
    wanted = requirements()
    reports = [resolve(python, [each for names in wanted.values() for each in names]) for python in pythons]
    known: set[str] = set()
    for lock, names in wanted.items():
        versions = merge(reports, names)
        lines = [
            line for name in sorted(set(versions) - known) for line in pins(name, versions[name], reports)
        ]
        (HERE / f"{lock}.txt").write_text(header(lock) + "\n".join(lines) + "\n")
        known |= set(versions)


def requirements() -> dict[str, list[str]]:
    """What each lock file starts from."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {lock: [each for name in names for each in extras[name]] for lock, names in LOCKS.items()}
    wanted["serve"] += project["dependencies"] + BUILD
    return wanted


def header(lock: str) -> str:
    return f"# The exact packages of `{lock}`, for Python 3.10 to 3.13; written by requirements/update.py.\n"


def resolve(python: str, wanted: list[str]) -> Report:
    """pip's report of what it would install, torch replaced by what it needs."""
    rest = [each for each in wanted if not each.startswith("torch==")] + torch_needs()
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report: Report = json.loads(subprocess.run([*command, *rest], check=True, stdout=subprocess.PIPE).stdout)
    report["packages"] = {canonicalize_name(each["metadata"]["name"]): each for each in report["install"]}
    report["packages"]["torch"] = {
        "metadata": {"version": pinned(wanted, "torch"), "requires_dist": torch_needs()}
    }
    return report


def torch_needs() -> list[str]:
    return [each for each in metadata.requires("torch") or [] if ";" not in each]


def pinned(wanted: list[str], name: str) -> str:
    return next(each.partition("==")[2] for each in wanted if each.startswith(f"{name}=="))


def merge(reports: list[Report], names: list[str]) -> Versions:
    versions: Versions = {}
    for report in reports:
        for name in closure(report, names):
            versions.setdefault(name, {})[minor(report)] = report["packages"][name]["metadata"]["version"]
    return versions


def closure(report: Report, names: Iterable[str]) -> set[str]:
    """The packages that `names` need, directly or not, under this Python."""
    found: set[str] = set()
    pending = [Requirement(each) for each in names]
    while pending:
        needed = pending.pop()
        name = canonicalize_name(needed.name)
        if name in report["packages"] and applies(needed, report, {""}):
            pending += needs_of(report["packages"][name], needed.extras, report) if name not in found else []
            found.add(name)
    return found


def needs_of(package: Report, extras: set[str], report: Report) -> Iterator[Requirement]:
    for text in package["metadata"].get("requires_dist") or ():
        needed = Requirement(text)
        if applies(needed, report, extras | {""}):
            needed.marker = None
            yield needed


def applies(needed: Requirement, report: Report, extras: set[str]) -> bool:
    marker = needed.marker
    return not marker or any(marker.evaluate(report["environment"] | {"extra": extra}) for extra in extras)


def minor(report: Report) -> str:
    return ".".join(report["environment"]["python_full_version"].split(".")[:2])


def pins(name: str, by_python: dict[str, str], reports: list[Report]) -> Iterator[str]:
    pythons = [minor(report) for report in reports]
    for version in dict.fromkeys(by_python[each] for each in pythons if each in by_python):
        group = [each for each in pythons if by_python.get(each) == version]
        yield f"{name}=={version}{marker(group, pythons)}"


def marker(group: list[str], pythons: list[str]) -> str:
    if group == pythons:
        return ""
    if group == pythons[: len(group)]:
        return f' ; python_version < "{pythons[len(group)]}"'
    if group == pythons[-len(group) :]:
        return f' ; python_version >= "{group[0]}"'
    return " ; " + " or ".join(f'python_version == "{each}"' for each in group)


if __name__ == "__main__":
    main(sys.argv[1:])
