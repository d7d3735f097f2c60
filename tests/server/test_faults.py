"""An exception ends what it belongs to and nothing else, on the server as it runs (docs/robustness.md).

The faults are planted (pagetide/faults.py); everything they meet is real. What the other requests get is
compared with what a server without faults gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from triton_world import IDLE, MODEL, Response, Triton, copy_of_the_shipped_repository, wait_until

from pagetide_server.launcher import Server

pytestmark = pytest.mark.server

PLANTED = "step=1-4 step=100 detokenizer=150 sender=120 template=1 grammar=1"
SAMPLING = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
REQUESTS = [
    {"prompt": f"A tale of {animal}:", "sampling": SAMPLING} for animal in ("owls", "bees", "cows", "eels")
]
FAILED_STEPS = "pagetide:failed_steps"
ERRORS = 'vllm:request_success_total{finished_reason="error"}'


def start(place: pytest.TempPathFactory, faults: str) -> Iterator[Triton]:
    directory = place.mktemp("faults")
    repository = copy_of_the_shipped_repository(directory / "repository")
    environment = {"PAGETIDE_FAULTS": faults}
    with Server(repository, device="cpu", env=environment, log_path=directory / "server.log") as server:
        server.wait_ready(MODEL)
        yield Triton(server)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    yield from start(tmp_path_factory, PLANTED)


@pytest.fixture
def breaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    yield from start(tmp_path_factory, "loop=60")


@pytest.fixture(scope="module")
def expected(triton: Triton) -> list[str]:
    return [triton.text(**request) for request in REQUESTS]


def error_of(responses: Sequence[Response]) -> str:
    return responses[-1].error


@pytest.fixture(scope="module")
def rounds(faulty: Triton, expected: list[str]) -> list[list[str]]:
    """Errors of one round after another, four requests each, until every fault was met. Those that meet
    none must get what they get without faults."""
    found: list[list[str]] = []
    for _ in range(30):
        found.append([])
        for responses, text in zip(faulty.together(REQUESTS), expected, strict=True):
            error = error_of(responses)
            assert "planted at" in error or "".join(response.text for response in responses) == text
            found[-1] += [error] if error else []
        if all(rounds_with(found, place) for place in ("step", "detokenizer", "sender")):
            return found
    raise AssertionError(f"not every fault was met: {found}")


def rounds_with(rounds: Sequence[list[str]], place: str) -> list[list[str]]:
    """The errors planted at `place` in each round that has any."""
    of_place = ([error for error in errors if f"planted at {place}" in error] for errors in rounds)
    return [errors for errors in of_place if errors]


def test_three_failed_steps_are_ill_health_and_one_good_step_ends_it(faulty: Triton) -> None:
    for number in range(1, 5):
        assert faulty.error(sampling=SAMPLING) == f"INTERNAL: PlantedError: planted at step, pass {number}"
        faulty.wait_for_metrics({FAILED_STEPS: number} | IDLE)
    reason = "the last 4 steps failed: PlantedError: planted at step, pass 4"
    wait_until(lambda: f"not ready: {reason}" in faulty.server.log.read_text(), "the log has the reason")
    assert faulty.text("Hello", sampling=SAMPLING)
    faulty.wait_for_metrics({FAILED_STEPS: 0} | IDLE)
    assert "ready again: a step succeeded after 4 that failed" in faulty.server.log.read_text()


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(
    faulty: Triton, rounds: list[list[str]]
) -> None:
    (errors,) = rounds_with(rounds, "step")
    assert set(errors) == {"INTERNAL: PlantedError: planted at step, pass 100"}
    assert "a step of " in faulty.server.log.read_text()
    faulty.wait_for_metrics(IDLE)


@pytest.mark.parametrize("place", ["detokenizer", "sender"])
def test_a_fault_in_one_requests_own_work_ends_that_request_only(
    faulty: Triton, rounds: list[list[str]], place: str
) -> None:
    ((error,),) = rounds_with(rounds, place)
    found = re.fullmatch(rf"INTERNAL: (request \d+): its response was not sent: planted at {place}.*", error)
    assert found, error
    assert f"{found[1]}: its response was not sent" in faulty.server.log.read_text()


def test_every_failed_request_is_counted(faulty: Triton, rounds: list[list[str]]) -> None:
    before_the_rounds = 4
    faulty.wait_for_metrics({ERRORS: before_the_rounds + sum(map(len, rounds))} | IDLE)


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("template", {"messages": json.dumps([{"role": "user", "content": "Hi"}]), "max_tokens": 4}),
        ("grammar", {"text_input": "Hi", "sampling_parameters": '{"guided_regex": "[a-z]{4}"}'}),
    ],
)
def test_a_request_that_could_not_be_taken_is_told_its_number_in_the_log(
    faulty: Triton, place: str, body: dict[str, Any]
) -> None:
    status, answer = faulty.post("generate", body)
    assert status >= 400
    found = re.search(rf"INTERNAL: (request \d+ was not taken): PlantedError: planted at {place}", answer)
    assert found, answer
    assert found[1] in faulty.server.log.read_text()
    assert faulty.post("generate", body)[0] == 200


def test_a_broken_loop_answers_everyone_and_ends_the_process(breaking: Triton) -> None:
    asked = [request | {"sampling": SAMPLING | {"max_tokens": 4000}} for request in REQUESTS]
    errors = [error_of(responses) for responses in breaking.together(asked)]
    assert errors == ["INTERNAL: PlantedError: planted at loop, pass 60"] * 4
    wait_until(lambda: not breaking.server.stubs(MODEL), "the model's process has ended")
    assert "this model's process ends: PlantedError: planted at loop" in breaking.server.log.read_text()
    assert breaking.error(sampling=SAMPLING), "who comes later is told, and does not wait"
