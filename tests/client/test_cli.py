"""The command line in pipes: text on stdout, one line an error, exit codes, no colours."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable

import pytest
from client_world import PAGETIDE

pytestmark = pytest.mark.server

Run = Callable[..., subprocess.CompletedProcess[bytes]]
GREEDY = ("--temperature", "0", "--max-tokens", "12")


def lines(data: bytes) -> list[str]:
    return data.decode().splitlines()


def test_generate_prints_the_text_and_nothing_else(cli: Run) -> None:
    done = cli("generate", "The capital of France is", *GREEDY)
    assert done.returncode == 0
    assert done.stdout.decode().startswith(" Paris")
    assert done.stderr == b""


def test_streamed_unstreamed_and_json_hold_the_same_text(cli: Run) -> None:
    streamed, whole, as_json = (
        cli("generate", "The capital of France is", *GREEDY, *more).stdout
        for more in ((), ("--no-stream",), ("--json",))
    )
    result = json.loads(as_json)
    assert streamed == whole == f"{result['text']}\n".encode()
    assert (result["num_input_tokens"], result["num_output_tokens"]) == (5, 12)


def test_samples_are_numbered(cli: Run) -> None:
    asked = ("generate", "Hello", "--n", "2", "--seed", "3", "--max-tokens", "6")
    done = cli(*asked)
    samples = json.loads(cli(*asked, "--json").stdout)["samples"]
    texts = [f"[{index}] {sample['text']}\n" for index, sample in enumerate(samples)]
    assert "".join(texts).encode() == done.stdout
    assert len(texts) == 2


def test_a_prompt_may_come_from_stdin(cli: Run) -> None:
    argument = cli("generate", "Héllo 😀, the capital of France is", *GREEDY)
    stdin = cli("generate", "-", *GREEDY, stdin="Héllo 😀, the capital of France is\n".encode())
    assert argument.stdout == stdin.stdout != b""


def test_stdin_that_is_not_utf8_is_refused(cli: Run) -> None:
    done = cli("generate", "-", stdin=b"ab\xff")
    assert done.returncode == 2
    assert b"stdin is not UTF-8: byte 2" in done.stderr


def test_output_is_utf8_whatever_the_locale(cli: Run) -> None:
    prompt = "😀 😀 😀 😀 😀 😀 😀"
    usual = cli("generate", prompt, *GREEDY)
    ascii_only = cli("generate", prompt, *GREEDY, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert ascii_only.returncode == 0
    assert usual.stdout == ascii_only.stdout


def test_stats_go_to_stderr_when_asked_for(cli: Run) -> None:
    done = cli("generate", "Hello", *GREEDY, "--stats")
    (line,) = lines(done.stderr)
    assert line.startswith("1 prompt tokens, ")
    for part in (" tokens in ", "TTFT ", " tok/s, "):
        assert part in line


def test_a_stop_text_ends_the_output(cli: Run) -> None:
    done = cli("generate", "The capital of France is", *GREEDY, "--stop", "ris")
    assert done.stdout == b" Pa\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("generate", "x", "--max-tokens", "0"), 2, "max_tokens is 0; it must be"),
        (("generate", ""), 2, "text_input is empty"),
        (("generate", "x", "--model", "nope"), 4, "unknown model: 'nope'"),
        (("generate", "x", "--timeout-s", "0.001"), 5, "not finished within total_s = 0.001 s"),
        (("generate", "x", "--url", "127.0.0.1:1"), 3, "no server answers at 127.0.0.1:1"),
        (("chat", "--url", "127.0.0.1:1"), 3, "start one with `pagetide serve`"),
        (("models", "--url", "127.0.0.1:1"), 3, "start one with `pagetide serve`"),
        (("top", "--once", "--metrics-url", "http://127.0.0.1:1/metrics"), 3, "no metrics at"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    cli: Run, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = cli(*arguments)
    assert done.returncode == code
    assert done.stdout == b""
    (line,) = lines(done.stderr)
    assert line.startswith("pagetide: ")
    assert message in line


def test_a_closed_pipe_ends_the_command_quietly(url: str, wait_until_running: Callable[[int], None]) -> None:
    generate = [PAGETIDE, "generate", "Once upon a time", "--max-tokens", "2000", "--url", url]
    with subprocess.Popen(generate, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(1)
        running.stdout.close()
        assert running.wait(60) == 1
        assert running.stderr.read() == b""
    wait_until_running(0)


def test_ctrl_c_ends_the_request_on_the_server(url: str, wait_until_running: Callable[[int], None]) -> None:
    generate = [PAGETIDE, "generate", "Once upon a time", "--max-tokens", "2000", "--url", url]
    with subprocess.Popen(generate, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.read(1)
        running.send_signal(signal.SIGINT)
        rest, complaints = running.communicate(timeout=60)
    assert running.returncode == 130
    assert rest.endswith(b"\n")
    assert complaints == b""
    wait_until_running(0)


def test_models_lists_what_is_served(cli: Run) -> None:
    heading, model = lines(cli("models").stdout)
    assert heading.split() == ["MODEL", "VERSION", "STATE", "REASON"]
    assert model.split() == ["smollm2", "1", "READY"]
    (entry,) = json.loads(cli("models", "--json").stdout)
    assert entry == {"name": "smollm2", "version": "1", "state": "READY", "reason": ""}


def test_top_once_shows_one_picture_without_colours(cli: Run) -> None:
    done = cli("top", "--once", "--interval-s", "0.1")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "\x1b" not in text
    for expected in ("smollm2 version 1", "running", "TTFT p50", "blocks", "shared", "free"):
        assert expected in text


def test_top_as_json_adds_up_to_the_whole_pool(cli: Run) -> None:
    (summary,) = json.loads(cli("top", "--json", "--interval-s", "0.1").stdout)
    assert (summary["model"], summary["version"]) == ("smollm2", "1")
    num_blocks = summary["blocks_used"] + summary["blocks_cached"] + summary["blocks_free"]
    assert num_blocks == sum(summary["statistics"]["blocks"].values()) > 0
