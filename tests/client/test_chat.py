"""What a chat sends: the whole conversation, as the commands in it say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from client_world import response, run_pagetide
from tritonclient.grpc import service_pb2 as pb

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Sent = list[list[tuple[str, str]]]
Chat = Callable[..., tuple[subprocess.CompletedProcess[bytes], Sent]]


@pytest.fixture
def chat(scripted: Callable[..., str]) -> Chat:
    """Runs `pagetide chat` with the lines a user types; gives what came out and what the server got."""
    sent: Sent = []

    def answer(request: pb.ModelInferRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        (data,) = (each.contents.bytes_contents[0] for each in request.inputs if each.name == "messages")
        sent.append([(each["role"], each["content"]) for each in json.loads(data)])
        yield response(f"answer {len(sent)} ")
        yield response("😀", "stop")

    url = scripted(answer)

    def run(*lines: str | bytes, options: tuple[str, ...] = ()) -> tuple[Any, Sent]:
        data = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
        return run_pagetide("chat", *options, "--url", url, stdin=data), sent

    return run


def test_each_turn_carries_the_turns_before(chat: Chat) -> None:
    done, sent = chat("Héllo", "", "again")
    assert done.returncode == 0
    assert done.stdout.decode() == "answer 1 😀\nanswer 2 😀\n"
    assert sent == [
        [("user", "Héllo")],
        [("user", "Héllo"), ("assistant", "answer 1 😀"), ("user", "again")],
    ]


def test_reset_forgets_the_turns_and_keeps_the_system_message(chat: Chat) -> None:
    _, sent = chat("one", "/reset", "two", options=("--system", "Be brief."))
    assert sent[1] == [("system", "Be brief."), ("user", "two")]


def test_system_sets_and_removes_the_system_message(chat: Chat) -> None:
    _, sent = chat("/system Be brief. ", "one", "/system", "/reset", "two")
    assert sent == [[("system", "Be brief."), ("user", "one")], [("user", "two")]]


def test_exit_leaves_at_once(chat: Chat) -> None:
    done, sent = chat("one", "/exit", "never sent")
    assert done.returncode == 0
    assert len(sent) == 1


def test_an_unknown_command_is_told_and_never_sent(chat: Chat) -> None:
    done, sent = chat("/nonsense", "one")
    assert b"unknown command /nonsense; /exit leaves" in done.stderr
    assert sent == [[("user", "one")]]


def test_bytes_that_are_no_utf8_become_replacement_characters(chat: Chat) -> None:
    _, sent = chat(b"a\xffb")
    assert sent == [[("user", "a\ufffdb")]]
