"""Planted faults strike in the passes they name, and a server without them runs its own functions."""

from __future__ import annotations

import pytest

from pagetide.config import SettingsError
from pagetide.faults import Faults, PlantedError


class Bell:
    rings = 0

    def ring(self, times: int = 1) -> int:
        self.rings += times
        return self.rings

    def rest(self) -> str:
        return "quiet"


def test_a_place_raises_in_its_passes_and_then_works_again() -> None:
    bell = Bell()
    ring = Faults({"PAGETIDE_FAULTS": "step=2-3 sender=1 step=5"}).within("step", bell.ring)
    assert ring() == 1
    for number in (2, 3):
        with pytest.raises(PlantedError, match=f"planted at step, pass {number}"):
            ring()
    assert ring(times=4) == 5
    with pytest.raises(PlantedError):
        ring()
    assert ring() == 6


def test_only_the_named_methods_of_an_object_are_replaced() -> None:
    bell = Bell()
    faulty = Faults({"PAGETIDE_FAULTS": "step=1"}).within_methods(bell, ring="step")
    with pytest.raises(PlantedError):
        faulty.ring()
    assert (faulty.ring(), faulty.rings, faulty.rest()) == (1, 1, "quiet")


def test_a_place_counts_its_passes_through_all_objects() -> None:
    faults = Faults({"PAGETIDE_FAULTS": "sender=2"})
    faults.within_methods(Bell(), ring="sender").ring()
    with pytest.raises(PlantedError):
        faults.within_methods(Bell(), ring="sender").ring()


def test_where_nothing_is_planted_nothing_is_wrapped() -> None:
    bell = Bell()
    for faults in (Faults({}), Faults({"PAGETIDE_FAULTS": "sender=1"})):
        assert faults.within_methods(bell, ring="step") is bell
        assert faults.within("step", print) is print


@pytest.mark.parametrize("text", ["step", "step=x", "cellar=1", "step=1-", "=1"])
def test_a_fault_that_is_not_understood_keeps_the_model_out(text: str) -> None:
    with pytest.raises(SettingsError, match="PAGETIDE_FAULTS has "):
        Faults({"PAGETIDE_FAULTS": text})
