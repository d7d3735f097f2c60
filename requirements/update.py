"""Writes the lock files from pyproject.toml: one resolution a Python version, merged with markers.

    .venv/bin/python requirements/update.py python3.10 python3.11 python3.12 python3.13

torch is pinned by name and not resolved: its CUDA and CPU builds differ in what they need, and each names
exact versions of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import tomllib

HERE = Path(__file__).parent
LOCKS = {"serve": ["serve"], "cuda": ["cuda"], "dev": ["dev", "loadtest"]}
"""Lock file → the extras it adds to the files before it."""
BUILD = ["setuptools==80.9.0"]

Versions = dict[str, dict[str, str]]
"""Package name → Python version → package version."""


def main(pythons: list[str]) -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted, known = project["dependencies"] + BUILD, set[str]()
    for lock, names in LOCKS.items():
        wanted = wanted + [requirement for name in names for requirement in extras.get(name, [])]
        versions = resolve(pythons, wanted)
        lines = [
            line for name in sorted(set(versions) - known) for line in pins(name, versions[name], versions)
        ]
        (HERE / f"{lock}.txt").write_text(header(lock) + "\n".join(lines) + "\n")
        known |= set(versions)


def header(lock: str) -> str:
    return f"# The exact packages of `{lock}`, for Python 3.10 to 3.13; written by requirements/update.py.\n"


def resolve(pythons: Iterable[str], requirements: list[str]) -> Versions:
    versions: Versions = {}
    for python in pythons:
        for name, version, minor in resolve_for(python, requirements):
            versions.setdefault(name, {})[minor] = version
    return versions


def resolve_for(python: str, requirements: list[str]) -> Iterable[tuple[str, str, str]]:
    torch = [each for each in requirements if each.startswith("torch==")]
    rest = [each for each in requirements if each not in torch] + torch_needs(bool(torch))
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = json.loads(subprocess.run([*command, *rest], check=True, stdout=subprocess.PIPE).stdout)
    minor = ".".join(report["environment"]["python_full_version"].split(".")[:2])
    for each in report["install"]:
        yield each["metadata"]["name"].lower().replace("_", "-"), each["metadata"]["version"], minor
    for each in torch:
        yield "torch", each.partition("==")[2], minor


def torch_needs(wanted: bool) -> list[str]:
    needs = metadata.requires("torch") or [] if wanted else []
    return [each for each in needs if ";" not in each]


def pins(name: str, by_python: dict[str, str], all_versions: Versions) -> Iterable[str]:
    pythons = sorted({minor for each in all_versions.values() for minor in each}, key=_key)
    for version in dict.fromkeys(by_python[minor] for minor in pythons if minor in by_python):
        group = [minor for minor in pythons if by_python.get(minor) == version]
        yield f"{name}=={version}{marker(group, pythons)}"


def marker(group: list[str], pythons: list[str]) -> str:
    if group == pythons:
        return ""
    if group == pythons[: len(group)]:
        return f' ; python_version < "{pythons[len(group)]}"'
    if group == pythons[-len(group) :]:
        return f' ; python_version >= "{group[0]}"'
    return " ; " + " or ".join(f'python_version == "{minor}"' for minor in group)


def _key(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split(".")))


if __name__ == "__main__":
    main(sys.argv[1:])
