"""Peers get the same work in every round, and one that does not run is reported with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers import engines, workload
from benchmarks.peers.engines import PEERS, PeerError, Running


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_rounds_have_the_same_lengths_and_no_common_prompts() -> None:
    first, second = workload.make(encode, rounds=2)
    for part, asked in first.items():
        assert [len(p) for p in asked["prompts"]] == [len(p) for p in second[part]["prompts"]]
        assert asked["counts"] == second[part]["counts"]
        assert all(p not in second[part]["prompts"] for p in asked["prompts"])
    assert workload.make(encode, rounds=2) == [first, second]


def test_those_that_share_have_a_common_start_and_ends_of_their_own() -> None:
    (asked,) = workload.make(encode, rounds=1)
    prompts = asked["first"]["prompts"] + asked["second"]["prompts"]
    assert len({tuple(p[: workload.SHARED_TOKENS]) for p in prompts}) == 1
    assert len({tuple(p[workload.SHARED_TOKENS :]) for p in prompts}) > 1


def test_an_engine_gives_every_request_its_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engines, "WORK", tmp_path)
    engine = Running(PEERS[0])
    answer = engine.run({"prompts": [[1, 2, 3] * 9, [5, 6, 7]], "counts": [3, 2]})
    engine.stop()
    assert [len(tokens) for tokens in answer["first_tokens"]] == [3, 2]
    assert answer["wall_s"] > 0
    assert answer["peak_rss_mb"] > 100


def test_an_engine_that_does_not_load_is_reported_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engines, "WORK", tmp_path)
    with pytest.raises(PeerError, match="ModuleNotFoundError: No module named 'vllm'"):
        Running(replace(next(peer for peer in PEERS if peer.name == "vLLM-CPU"), environment=""))
