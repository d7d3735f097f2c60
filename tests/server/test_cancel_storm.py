"""Cancels without number, at every moment of a request's life, leave nothing behind."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from triton_world import IDLE, Triton, infer_request
from usage import usage

pytestmark = pytest.mark.server

NUM_CANCELS = 2000
CONCURRENCY = 64
WARM_UP = 200
MOST_GROWTH_MIB = 64
SAMPLING = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
CANCELLED = 'vllm:request_success_total{finished_reason="cancelled"}'


def test_a_cancel_between_the_last_response_and_the_end_of_the_call_changes_nothing(idle: Triton) -> None:
    before = idle.metrics()[CANCELLED]
    asked = {"triton_enable_empty_final_response": True}
    for _ in range(20):
        call = idle.start("Count:", sampling=SAMPLING | {"max_tokens": 2}, parameters=asked)
        for response in call:
            if response.is_final:
                break
        call.cancel()
    idle.wait_for_metrics(IDLE)
    assert idle.metrics()[CANCELLED] == before
    assert idle.text("Hello", sampling=SAMPLING)


def test_a_cancel_twice_and_one_after_the_end_are_one_and_none(idle: Triton) -> None:
    before = idle.metrics()[CANCELLED]
    call = idle.start("Count:", sampling=SAMPLING | {"max_tokens": 4000})
    next(iter(call))
    call.cancel()
    call.cancel()
    idle.wait_for_metrics({CANCELLED: before + 1} | IDLE)
    call.cancel()
    ended = idle.start("Count:", sampling=SAMPLING)
    ended.all()
    ended.cancel()
    idle.wait_for_metrics({CANCELLED: before + 1} | IDLE)


@pytest.mark.slow
def test_2000_random_cancels_at_concurrency_64_leave_nothing_behind(idle: Triton) -> None:
    prompt = "A stream that goes on:"
    expected = idle.text(prompt, sampling=SAMPLING)
    storm(idle, range(NUM_CANCELS, NUM_CANCELS + WARM_UP))
    idle.wait_until_idle()
    before = usage(idle.server)
    ends = storm(idle, range(NUM_CANCELS))
    assert set(ends) <= {"CANCELLED", "DEADLINE_EXCEEDED", "ended"}
    assert ends["CANCELLED"] > NUM_CANCELS / 5
    assert ends["DEADLINE_EXCEEDED"] > NUM_CANCELS / 5
    assert idle.text(prompt, sampling=SAMPLING) == expected
    idle.wait_until_idle()
    growth = usage(idle.server).growth_since(before)
    print(f"{dict(ends)}; {growth}")
    assert growth.rss_mib < MOST_GROWTH_MIB
    assert growth.shared_memory_mib < MOST_GROWTH_MIB
    assert growth.files <= CONCURRENCY


def storm(triton: Triton, seeds: range) -> Counter[str]:
    """How the calls ended; some may end by themselves before their cancel comes."""
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return Counter(pool.map(lambda seed: cancelled_call(triton, seed), seeds))


def cancelled_call(triton: Triton, seed: int) -> str:
    choose = random.Random(seed)
    request = infer_request(
        "word " * choose.choice([1, 1, 20, 200]),
        stream=choose.random() < 0.7,
        sampling=SAMPLING | {"max_tokens": choose.choice([1, 3, 4000, 4000])},
    )
    delay_s = choose.choice([0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3])
    by_deadline = choose.random() < 0.5
    call = triton.stub.ModelStreamInfer(iter([request]), timeout=delay_s if by_deadline else 60)
    try:
        if not by_deadline:
            time.sleep(delay_s)
            call.cancel()
        for _ in call:
            pass
    except grpc.RpcError as error:
        return error.code().name
    return "ended"
