"""A call is greeted, and whoever knows its name can end it."""

from __future__ import annotations

import gc

from pagetide.calls import CALL, CANCEL, Calls


class Channel:
    def __init__(self, *request_ids: int) -> None:
        self.request_ids = request_ids
        self.left = False
        self.greetings: list[str] = []

    def greet(self, version: str) -> None:
        self.greetings.append(version)


class World:
    def __init__(self) -> None:
        self.aborted: list[int] = []
        self.calls = Calls("3", self.aborted.append)


def test_only_a_call_is_greeted() -> None:
    world, call, other = World(), Channel(), Channel()
    world.calls.open(f"{CALL}a", call)
    world.calls.open("a client's own id", other)
    assert (call.greetings, other.greetings) == (["3"], [])


def test_a_cancel_ends_the_call_of_that_name_only() -> None:
    world, first, second = World(), Channel(1), Channel(2, 3)
    world.calls.open(f"{CALL}first", first)
    world.calls.open(f"{CALL}second", second)
    assert world.calls.cancel(f"{CANCEL}second")
    assert world.aborted == [2, 3]


def test_a_request_of_a_client_is_no_cancel() -> None:
    assert not World().calls.cancel("first")
    assert not World().calls.cancel("")
    assert not World().calls.cancel(f"{CALL}first")


def test_a_call_that_is_over_or_never_was_is_not_ended() -> None:
    world = World()
    over = Channel(1)
    world.calls.open(f"{CALL}over", over)
    world.calls.open(f"{CALL}refused", refused := Channel())
    del over
    gc.collect()
    for name in ("over", "refused", "unknown"):
        assert world.calls.cancel(f"{CANCEL}{name}")
    assert world.aborted == []
    assert refused.greetings == ["3"]


def test_a_call_that_the_engine_does_not_have_yet_is_known_to_be_left() -> None:
    """Its grammar may still be compiled; a sender asks once the engine has it."""
    world, waiting, other = World(), Channel(), Channel()
    world.calls.open(f"{CALL}waiting", waiting)
    world.calls.open(f"{CALL}other", other)
    world.calls.cancel(f"{CANCEL}waiting")
    assert (waiting.left, other.left) == (True, False)
