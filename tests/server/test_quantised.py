"""The default model from quantised weights, on a real server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from triton_world import MODEL, Triton, copy_of_the_shipped_repository

from pagetide_server.launcher import Server

pytestmark = pytest.mark.server

FORMS = {
    "gguf": {"quantization": "gguf"},
    "int4": {"quantization": "int4", "kv_cache_dtype": "int8"},
}
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """One model for each of FORMS."""
    place = tmp_path_factory.mktemp("quantised")
    copy = copy_of_the_shipped_repository(place / "repository")
    shipped = copy / MODEL / "1"
    for name, settings in FORMS.items():
        shutil.copytree(shipped, copy / name / "1")
        _change(copy / name / "1" / "model.json", settings)
    shutil.rmtree(copy / MODEL)
    with Server(copy, device="cpu", log_path=place / "server.log") as server:
        for name in FORMS:
            server.wait_ready(name)
        yield Triton(server)


def _change(file: Path, settings: dict[str, str]) -> None:
    small = {"kv_cache_bytes": "64MiB"}
    file.write_text(json.dumps(json.loads(file.read_text()) | small | settings))


@pytest.mark.parametrize("name", FORMS)
def test_quantised_weights_answer_sensibly(quantised: Triton, name: str) -> None:
    (response,) = quantised.start("The capital of France is", stream=False, model=name, sampling=GREEDY).all()
    assert response.text.startswith("The capital of France is Paris")
    counted = quantised.text("1, 2, 3, 4, 5, 6, 7,", model=name, sampling=GREEDY)
    assert counted.startswith(" 8, 9, 10, 11, 12"), counted


@pytest.mark.parametrize("name", FORMS)
def test_a_stream_gives_the_same_text_alone_and_among_others(quantised: Triton, name: str) -> None:
    prompts = [f"Write {n} words about the number {n * 7}:" for n in range(2, 26)]
    requests = [{"prompt": prompt, "model": name, "sampling": GREEDY} for prompt in prompts]
    together = quantised.together(requests)
    alone = [quantised.start(**request).all() for request in requests[:4]]
    texts = ["".join(response.text for response in responses) for responses in [*together, *alone]]
    assert texts[:4] == texts[len(together) :]
