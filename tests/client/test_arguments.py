from __future__ import annotations

from pagetide_client.cli.arguments import sampling

NONE = dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "seed"))


def test_the_terminal_is_greedy_unless_asked_to_sample() -> None:
    assert sampling(**NONE, max_tokens=3) == {"temperature": 0.0, "max_tokens": 3}
    assert sampling(**NONE | {"seed": 3}) == {"seed": 3}
    assert sampling(**NONE | {"temperature": 0.5}) == {"temperature": 0.5}
