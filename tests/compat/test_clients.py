"""Client packages of others, as they are published, against the real server (docs/compatibility.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from triton_world import Triton

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

Ask = Callable[[str, str], dict[str, Any]]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def expected(served: Triton) -> str:
    """None of the clients asks to sample, so all get the most likely tokens."""
    return served.text(PROMPT, sampling={"temperature": 0, "max_tokens": 24})


def test_litellm_completes_streams_and_infers(served: Triton, ask: Ask, expected: str) -> None:
    got = ask("ask_litellm.py", f"{served.server.url}/v2/models")
    assert got["generate"] == expected
    assert "".join(got["stream"]) == expected
    assert len(got["stream"]) > 2
    assert got["infer"]
    assert not got["infer"].startswith(PROMPT)
    assert "max_tokens is 0; it must be a whole number of at least 1" in got["refusal"]


def test_llama_index_completes_and_streams(served: Triton, ask: Ask, expected: str) -> None:
    """It takes one response less than the tokens it asks for, so the last one is missing."""
    got = ask("ask_llama_index.py", served.address)
    for text in (got["complete"], "".join(got["stream"])):
        assert expected.startswith(text)
        assert len(text) > len(expected) // 2
    assert len(got["stream"]) > 2
    assert got["refusal"] == "beam_width is 2; only 1 is served"


def test_langchain_invokes_and_streams(served: Triton, ask: Ask, expected: str) -> None:
    got = ask("ask_langchain.py", served.address)
    assert got["invoke"] == expected
    assert "".join(got["stream"]) == expected
    assert len(got["stream"]) > 2
