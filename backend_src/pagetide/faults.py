"""Faults planted for tests: the exceptions that must never reach another request, on a server as it runs.

Nothing is planted unless the environment says so when a model loads, and then nothing is wrapped either.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from pagetide.config import SettingsError

VARIABLE = "PAGETIDE_FAULTS"
PLACES = ("template", "grammar", "detokenizer", "sender", "step", "loop")

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")
_Target = TypeVar("_Target")


class PlantedError(RuntimeError):
    """Raised on purpose; its message names the place and the pass."""


class _Place:
    """Counts the passes through one place, and raises in those that were planted."""

    def __init__(self, name: str) -> None:
        self.planted: list[range] = []
        self._name = name
        self._numbers = itertools.count(1)

    def enter(self) -> None:
        number = next(self._numbers)
        if any(number in each for each in self.planted):
            raise PlantedError(f"planted at {self._name}, pass {number}")


class Faults:
    """Which passes through which place raise. A place counts its own passes, from 1."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`PAGETIDE_FAULTS="step=20-22 step=90 sender=7"` names a pass or a range. Raises SettingsError."""
        self._places: dict[str, _Place] = {}
        for name, planted in map(_planted, environment.get(VARIABLE, "").split()):
            self._places.setdefault(name, _Place(name)).planted.append(planted)

    def within(self, place: str, function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        """`function`, which raises in the passes planted at `place`; itself if there are none."""
        if place not in self._places:
            return function
        enter = self._places[place].enter

        def faulty(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            enter()
            return function(*args, **kwargs)

        return faulty

    def within_methods(self, target: _Target, **places: str) -> _Target:
        """`target` with faults at the place of each named method; itself if none is planted there."""
        planted = {
            method: self.within(place, getattr(target, method))
            for method, place in places.items()
            if place in self._places
        }
        return cast(_Target, _Faulty(target, planted)) if planted else target


class _Faulty:
    """An object some of whose methods are replaced."""

    def __init__(self, target: object, methods: Mapping[str, Callable[..., Any]]) -> None:
        self._target = target
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def _planted(text: str) -> tuple[str, range]:
    match = re.fullmatch(r"(\w+)=(\d+)(?:-(\d+))?", text)
    if match is None or match[1] not in PLACES:
        raise SettingsError(
            f"{VARIABLE} has {text!r}; it must be PLACE=PASS or PLACE=FIRST-LAST with a place of "
            f"{', '.join(PLACES)}"
        )
    return match[1], range(int(match[2]), int(match[3] or match[2]) + 1)


NO_FAULTS = Faults({})
