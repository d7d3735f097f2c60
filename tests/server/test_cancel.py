"""Whoever leaves, and whenever: blocks come back, and nobody else notices."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from triton_world import IDLE, MODEL, SMALL, Call, Triton, wait_until

pytestmark = pytest.mark.server

LONG = {"max_tokens": 4000, "ignore_eos": True}
CANCELLED = 'vllm:request_success_total{finished_reason="cancelled"}'


def read_until_cancelled(call: Call) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call.all()
    assert caught.value.code() is grpc.StatusCode.CANCELLED


def num_in_engine(triton: Triton) -> float:
    shown = triton.metrics()
    return shown["vllm:num_requests_running"] + shown["vllm:num_requests_waiting"]


def wait_for_cancelled(triton: Triton, before: float, count: int, model: str = MODEL) -> None:
    triton.wait_for_metrics(IDLE | {CANCELLED: before + count}, model)


def test_a_stream_can_be_cancelled_between_tokens(idle: Triton) -> None:
    before = idle.metrics()[CANCELLED]
    call = idle.start("Count:", sampling=LONG)
    assert next(iter(call)).text
    call.cancel()
    read_until_cancelled(call)
    wait_for_cancelled(idle, before, 1)


def test_a_request_can_be_cancelled_before_its_first_token(idle: Triton) -> None:
    before = idle.metrics()
    call = idle.start("word " * 6000, sampling=LONG)
    wait_until(lambda: idle.metrics()["vllm:num_requests_running"] == 1, "the prompt is being computed")
    call.cancel()
    wait_for_cancelled(idle, before[CANCELLED], 1)
    generated = "vllm:generation_tokens_total"
    assert idle.metrics()[generated] == before[generated]


def test_waiting_requests_can_be_cancelled(triton: Triton) -> None:
    before = triton.metrics(SMALL)[CANCELLED]
    asked = {"model": SMALL, "return_num_output_tokens": True, "sampling": LONG | {"max_tokens": 300}}
    running = [triton.start(f"Count {n}:", **asked) for n in range(4)]
    responses = [iter(call) for call in running]
    first = [next(each) for each in responses]
    waiting = [triton.start(f"Wait {n}:", **asked) for n in range(6)]
    triton.wait_for_metrics({"vllm:num_requests_running": 4, "vllm:num_requests_waiting": 6}, SMALL)
    for call in waiting:
        call.cancel()
    for response, rest in zip(first, responses, strict=True):
        assert sum(each.outputs["num_output_tokens"] for each in (response, *rest)) == 300
    wait_for_cancelled(triton, before, 6, SMALL)


def test_200_random_cancels_leave_every_block_free_and_others_untouched(idle: Triton) -> None:
    def one(seed: int) -> None:
        choose = random.Random(seed)
        call = idle.start(
            "word " * choose.choice([1, 20, 300]),
            stream=choose.random() < 0.7,
            sampling=LONG | {"seed": seed},
        )
        time.sleep(choose.choice([0.0, 0.002, 0.02, 0.1, 0.3]))
        call.cancel()
        read_until_cancelled(call)

    prompt, sampling = "A stream that goes on:", {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    expected = idle.text(prompt, sampling=sampling)
    with ThreadPoolExecutor(16) as pool:
        cancelled = pool.map(one, range(200))
        texts = [idle.text(prompt, sampling=sampling) for _ in range(2)]
        assert list(cancelled) == [None] * 200
    assert texts == [expected] * 2
    idle.wait_until_idle()


@pytest.fixture
def clients(idle: Triton) -> Iterator[list[subprocess.Popen[str]]]:
    """Ten programs with ten streams each, all sent."""
    script = Path(__file__).with_name("killed_client.py")
    programs = [
        subprocess.Popen(
            [sys.executable, str(script), idle.address, "10", str(seed)], stdout=subprocess.PIPE, text=True
        )
        for seed in range(10)
    ]
    yield programs
    for program in programs:
        program.kill()
        program.wait()


def test_100_killed_clients_leave_every_block_free(
    idle: Triton, clients: list[subprocess.Popen[str]]
) -> None:
    before = idle.metrics()[CANCELLED]
    for program in clients:
        assert program.stdout is not None
        assert program.stdout.readline() == "sent\n"
    wait_until(lambda: num_in_engine(idle) == 100, "all of them are being served")
    for program in clients:
        program.send_signal(signal.SIGKILL)
    wait_for_cancelled(idle, before, 100)


def test_a_dropped_http_stream_is_cancelled(idle: Triton) -> None:
    before = idle.metrics()[CANCELLED]
    body = b'{"text_input": "Count:", "stream": true, "max_tokens": 4000, "ignore_eos": true}'
    head = (
        f"POST /v2/models/{MODEL}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", idle.server.http_port)) as connection:
        connection.sendall(head.encode() + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    wait_for_cancelled(idle, before, 1)


def test_a_slow_reader_holds_nobody_back_and_misses_nothing(idle: Triton) -> None:
    sampling = {"temperature": 0, "max_tokens": 120, "ignore_eos": True, "logprobs": 20}
    responses = iter(idle.start("Once upon a time", sampling=sampling, return_logprobs=True))
    read = [next(responses)]
    others = idle.together([{"prompt": f"Say {n}", "sampling": {"max_tokens": 16}} for n in range(8)])
    assert all(len(each) > 1 for each in others)
    idle.wait_for_metrics(IDLE)
    read += responses
    tokens = [token for response in read for token in json.loads(response.outputs["logprobs"])]
    assert len(tokens) == 120
    chosen = [next(iter(token.values()))["decoded_token"] for token in tokens]
    assert "".join(chosen) == "".join(response.text for response in read)
