"""A front notices which clients left, and goes on when it can't ask."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pagetide.front_watch import Call, Watch

LONG_S = 30.0


class Client:
    """Counts how often it is asked; leaves, or breaks, when told."""

    def __init__(self, left: bool = False, broken: bool = False) -> None:
        self.left = left
        self.broken = broken
        self.asked = threading.Semaphore(0)

    def has_left(self) -> bool:
        self.asked.release()
        if self.broken:
            raise RuntimeError("no such request")
        return self.left

    def wait_until_asked(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=LONG_S)


class World:
    def __init__(self) -> None:
        self.given_up: list[Call] = []
        self.watch = Watch(self.give_up)
        self.refuses = False

    def give_up(self, call: Call) -> None:
        self.given_up.append(call)
        if not self.refuses:
            self.watch.discard(call)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.watch.start()
    yield made
    made.watch.stop()


def test_only_a_client_that_left_is_given_up(world: World) -> None:
    stays, leaves = Client(), Client(left=True)
    world.watch.add(stays)
    world.watch.add(leaves)
    leaves.wait_until_asked()
    stays.wait_until_asked(3)
    assert world.given_up == [leaves]
    assert len(world.watch) == 1


def test_a_call_that_could_not_be_ended_yet_comes_up_again(world: World) -> None:
    world.refuses = True
    leaves = Client(left=True)
    world.watch.add(leaves)
    leaves.wait_until_asked(3)
    assert world.given_up[:2] == [leaves, leaves]
    world.watch.discard(leaves)


def test_one_that_can_not_be_asked_holds_nobody_up(world: World) -> None:
    broken, leaves = Client(broken=True), Client(left=True)
    world.watch.add(broken)
    broken.wait_until_asked()
    world.watch.add(leaves)
    leaves.wait_until_asked()
    stays = Client()
    world.watch.add(stays)
    stays.wait_until_asked(2)
    assert world.given_up == [leaves]
    assert len(world.watch) == 1


def test_nobody_is_asked_after_being_discarded(world: World) -> None:
    first, second = Client(), Client()
    world.watch.add(first)
    first.wait_until_asked()
    world.watch.discard(first)
    world.watch.add(second)
    second.wait_until_asked(2)
    while first.asked.acquire(blocking=False):
        pass
    second.wait_until_asked(2)
    assert not first.asked.acquire(blocking=False)


def test_an_idle_watch_stops_at_once() -> None:
    watch = World().watch
    watch.start()
    watch.stop()
