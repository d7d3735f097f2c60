"""A server whose steps overlap answers as one whose steps do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from triton_world import MODEL, Triton, copy_of_the_shipped_repository

from pagetide_server.launcher import Server

pytestmark = pytest.mark.server

GREEDY = {"temperature": 0, "max_tokens": 24}
REQUESTS: list[dict[str, Any]] = [
    *({"prompt": f"A tale of {animal}:", "sampling": GREEDY} for animal in ("owls", "bees", "cows", "eels")),
    {
        "prompt": "A tale of owls:",
        "sampling": {"temperature": 1.0, "seed": 5, "max_tokens": 24, "top_p": 0.9},
    },
    {"prompt": "A tale of owls:", "sampling": GREEDY | {"frequency_penalty": 1.5, "min_tokens": 20}},
    {"prompt": "Yes or no?", "sampling": GREEDY | {"guided_choice": ["certainly", "never"]}},
    {"prompt": "word " * 300, "sampling": GREEDY | {"logprobs": 1}},
]


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    directory = tmp_path_factory.mktemp("overlapped")
    repository = copy_of_the_shipped_repository(directory / "repository")
    path = repository / MODEL / "1" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"overlap": True}))
    with Server(repository, device="cpu", log_path=directory / "server.log") as server:
        server.wait_ready(MODEL)
        yield Triton(server)


def test_all_at_once_each_gets_its_text(triton: Triton, overlapped: Triton) -> None:
    texts = ["".join(each.text for each in answer) for answer in overlapped.together(REQUESTS)]
    assert texts == [triton.text(**request) for request in REQUESTS]


def test_a_client_that_leaves_frees_its_blocks(overlapped: Triton) -> None:
    call = overlapped.start("Count:", sampling={"max_tokens": 4000, "ignore_eos": True})
    next(iter(call))
    call.cancel()
    overlapped.wait_until_idle()
