"""Recorded traffic: read as published, scaled to fit, with the sharing that it had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.traces import Fit, Recorded, read, replay

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:48.6805900,396,109
"""


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


def mooncake(path: Path, *rows: tuple[int, int, int, list[int]]) -> Path:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return path


def test_an_azure_trace_is_read_with_times_from_its_first_request(azure: Path) -> None:
    assert list(read(azure)) == [Recorded(0.0, 374, 44), Recorded(2.0, 396, 109)]


def test_a_mooncake_trace_is_read_with_its_blocks(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "m.jsonl", (0, 600, 5, [1, 2]), (1500, 700, 6, [1, 3]))
    assert list(read(path)) == [Recorded(0.0, 600, 5, (1, 2)), Recorded(1.5, 700, 6, (1, 3))]


def test_replay_is_faster_and_shorter_as_asked(azure: Path) -> None:
    schedule = list(replay(read(azure), Fit(speed=4, lengths=0.5, max_prompt=190, max_output=50), seed=0))
    assert [at_s for at_s, _ in schedule] == [0.0, 0.5]
    assert [len(prompt.text.split()) for _, prompt in schedule] == [187, 190]
    assert [prompt.max_tokens for _, prompt in schedule] == [22, 50]


def test_prompts_share_as_many_blocks_as_the_trace_says(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "m.jsonl", (0, 1536, 5, [1, 2, 3]), (0, 1536, 5, [1, 2, 9]))
    (_, first), (_, second) = replay(read(path), Fit(lengths=0.25), seed=0)
    a, b = first.text.split(), second.text.split()
    assert len(a) == len(b) == 384
    assert a[:256] == b[:256]
    assert a[256:] != b[256:]


def test_requests_are_replayed_in_order_of_time(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "m.jsonl", (3000, 10, 1, [1]), (1000, 10, 1, [2]))
    assert [at_s for at_s, _ in replay(read(path), Fit(), seed=0)] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("t.csv", AZURE + "yesterday,1,2\n", 4),
        ("t.csv", "a,b\n1,2\n", 2),
        ("t.csv", AZURE + "2023-11-16 18:15:49.0,many,2\n", 4),
        ("t.jsonl", '{"timestamp": 1}\n', 1),
        ("t.jsonl", "not json\n", 1),
    ],
)
def test_a_line_of_another_format_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{name}:{line}"):
        list(read(path))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.csv or a Mooncake \.jsonl"):
        list(read(tmp_path / "trace.parquet"))


def test_a_scale_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="speed is 0"):
        Fit(speed=0)
