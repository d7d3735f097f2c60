"""Who does not read, and who asks for much, costs the others nothing and the server a bounded amount."""

from __future__ import annotations

import json

import pytest
from triton_world import IDLE, Call, Triton, wait_until
from usage import usage

pytestmark = pytest.mark.server

NUM_STREAMS = 8
NUM_TOKENS = 150
LARGE = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "logprobs": 20}
SMALL = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
CANCELLED = 'vllm:request_success_total{finished_reason="cancelled"}'


def unread_streams(triton: Triton) -> list[Call]:
    return [
        triton.start(f"Story number {n}:", sampling=LARGE, return_logprobs=True) for n in range(NUM_STREAMS)
    ]


def test_streams_that_nobody_reads_stall_nobody_and_cost_no_more_than_what_they_hold(idle: Triton) -> None:
    expected = idle.text("Meanwhile", sampling=SMALL)
    for call in unread_streams(idle):
        call.all()
    before = usage(idle.server)
    unread = unread_streams(idle)
    assert idle.text("Meanwhile", sampling=SMALL) == expected
    idle.wait_for_metrics(IDLE)
    growth = usage(idle.server).growth_since(before)
    held = [[response.outputs["logprobs"] for response in call] for call in unread]
    assert [sum(len(json.loads(text)) for text in texts) for texts in held] == [NUM_TOKENS] * NUM_STREAMS
    held_mib = sum(len(text) for texts in held for text in texts) / 2**20
    print(f"{held_mib:.1f} MiB held for {NUM_STREAMS * NUM_TOKENS} tokens; {growth}")
    assert growth.rss_mib < 8 * held_mib + 16


def num_in_engine(triton: Triton) -> float:
    shown = triton.metrics()
    return shown["vllm:num_requests_running"] + shown["vllm:num_requests_waiting"]


def test_a_stream_that_is_left_unread_is_given_up_when_its_client_goes(idle: Triton) -> None:
    before = idle.metrics()[CANCELLED]
    unread = [idle.start(f"Count {n}:", sampling=LARGE | {"max_tokens": 4000}) for n in range(NUM_STREAMS)]
    wait_until(lambda: num_in_engine(idle) == NUM_STREAMS, "all of them are being served")
    for call in unread:
        call.cancel()
    idle.wait_for_metrics({CANCELLED: before + NUM_STREAMS} | IDLE)


def test_one_huge_response_arrives_whole_beside_a_stream(idle: Triton) -> None:
    """Not streaming, every token's log-probabilities wait for the end and come in one tensor."""
    expected = idle.text("Meanwhile", sampling=SMALL)
    call = idle.start(
        "A long story:", stream=False, sampling=LARGE | {"max_tokens": 400}, return_logprobs=True
    )
    assert idle.text("Meanwhile", sampling=SMALL) == expected
    (response,) = call.all()
    assert len(json.loads(response.outputs["logprobs"])) == 400
