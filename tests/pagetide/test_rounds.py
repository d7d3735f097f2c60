"""Responses are sent in rounds that keep to a rate; what must not wait does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagetide.rounds import Rounds


def served(rounds: Rounds[str], now_s: float) -> list[str]:
    """Everyone whose turn it is at `now_s`, each with a response."""
    found = []
    while (item := rounds.take(now_s)) is not None:
        found.append(item)
        rounds.count_response()
    return found


def test_a_round_takes_everyone_and_the_next_waits_for_as_long_as_it_was() -> None:
    rounds: Rounds[str] = Rounds(most_per_s=10)
    for item in "abc":
        rounds.add(item, urgent=False)
    assert served(rounds, 100.0) == ["a", "b", "c"]
    rounds.add("a", urgent=False)
    assert rounds.wait_s(100.1) is not None
    assert served(rounds, 100.25) == []
    assert served(rounds, 100.35) == ["a"]


def test_what_is_urgent_goes_first_and_at_any_time() -> None:
    rounds: Rounds[str] = Rounds(most_per_s=10)
    rounds.add("a", urgent=False)
    rounds.add("b", urgent=True)
    assert served(rounds, 100.0) == ["b", "a"]
    rounds.add("c", urgent=False)
    rounds.add("d", urgent=True)
    assert served(rounds, 100.01) == ["d"]


@given(st.lists(st.tuples(st.floats(0, 0.2), st.sampled_from("abcdefgh")), min_size=50, max_size=200))
def test_rounds_keep_to_the_rate_and_nobody_is_left(arrivals: list[tuple[float, str]]) -> None:
    rounds: Rounds[str] = Rounds(most_per_s=100)
    now_s, count, waiting = 50.0, 0, set()
    for pause_s, item in arrivals:
        now_s += pause_s
        rounds.add(item, urgent=False)
        waiting.add(item)
        for taken in served(rounds, now_s):
            waiting.remove(taken)
            count += 1
    assert count <= 100 * (now_s - 50.0) + 8
    rounds.wait_no_more()
    assert set(served(rounds, now_s)) == waiting
    assert not rounds
