"""Samples of one prompt share its blocks and reach the client as one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from scheduler_world import World

from pagetide.answer import Answer, ErrorCode, Failure, Reply
from pagetide.parse import ParsedRequest
from pagetide.request import FinishReason, Output, SamplingParams
from pagetide.samples import Joint, Part, nth_sample


class Bytes:
    """A tokenizer whose ids are bytes."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return bytes(ids).decode(errors="replace")


@dataclass
class Client:
    """What reaches the client, as (texts, finish reasons, final)."""

    sent: list[tuple[list[str], list[object], bool]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    breaks: bool = False

    def send_all(self, replies: Sequence[Reply], final: bool) -> None:
        if self.breaks:
            raise RuntimeError("the pipe broke")
        texts = [reply.text for reply in replies]
        self.sent.append((texts, [reply.values["finish_reason"] for reply in replies], final))

    def fail(self, failure: Failure) -> None:
        self.failures.append(failure)

    def is_cancelled(self) -> bool:
        return True


class Samples:
    """A joint answer of three samples, each given tokens as its sender would do it."""

    def __init__(self, in_pieces: bool) -> None:
        returned = frozenset({"finish_reason"})
        parsed = ParsedRequest("p", "" if in_pieces else "p", in_pieces, returned, SamplingParams())
        self.answers = [Answer(parsed, [112], Bytes(), index) for index in range(3)]
        self.client = Client()
        self.aborted: list[tuple[int, FinishReason]] = []
        joint = Joint(
            self.client, self.answers, [7, 8, 9], lambda *each: self.aborted.append(each), in_pieces
        )
        self.parts: list[Part] = joint.parts()

    def give(self, index: int, text: str, reason: FinishReason | None = None) -> None:
        self.answers[index].take(Output(tuple(text.encode()), finish_reason=reason))
        reply = self.answers[index].reply()
        if reply is not None:
            self.parts[index].send(reply, final=reply.finish_reason is not None)


def test_sample_0_has_the_requests_seed_and_the_others_the_next_ones() -> None:
    params = SamplingParams(seed=2**63 - 1, temperature=0.5)
    assert nth_sample(params, 0) is params
    assert nth_sample(params, 2).seed == 2**63 + 1
    assert nth_sample(SamplingParams(), 3).seed is None


def test_samples_share_their_prompts_blocks_in_the_step_that_computes_it() -> None:
    world = World(num_blocks=32, max_step_tokens=256, max_running=8)
    for _ in range(3):
        world.submit([i % 5 for i in range(70)], max_tokens=3, min_tokens=3)
    plan = world.scheduler.plan()
    assert plan is not None
    assert list(plan.num_new) == [70, 70 - 64, 70 - 64]
    shared = [list(table[:4]) for table in plan.block_tables]
    assert shared[0] == shared[1] == shared[2]


def test_each_response_has_an_entry_for_each_sample_and_the_last_ends_it() -> None:
    samples = Samples(in_pieces=True)
    samples.give(1, "b")
    samples.give(0, "a.", FinishReason.STOP)
    samples.give(2, "c", FinishReason.LENGTH)
    samples.give(1, "d", FinishReason.LENGTH)
    assert samples.client.sent == [
        (["", "b", ""], ["None", "None", "None"], False),
        (["a", "", ""], ["stop", "None", "None"], False),
        (["", "", "c"], ["stop", "None", "length"], False),
        (["", "d", ""], ["stop", "length", "length"], True),
    ]


def test_not_streamed_all_samples_come_in_one_response() -> None:
    samples = Samples(in_pieces=False)
    for index in (2, 0, 1):
        samples.give(index, "abc"[index], FinishReason.LENGTH)
    assert samples.client.sent == [(["pa", "pb", "pc"], ["length"] * 3, True)]


def test_one_sample_that_fails_ends_all_and_the_client_is_told_once() -> None:
    samples = Samples(in_pieces=True)
    samples.give(0, "a")
    assert samples.parts[1].is_cancelled()
    for part in samples.parts:
        part.fail(Failure(ErrorCode.CANCELLED, "the client left"))
    samples.give(0, "b", FinishReason.LENGTH)
    assert len(samples.client.sent) == 1
    assert samples.client.failures == [Failure(ErrorCode.CANCELLED, "the client left")]
    assert samples.aborted == [(request_id, FinishReason.CANCELLED) for request_id in (7, 8, 9)]
    assert not samples.parts[1].is_cancelled(), "nobody is asked after the end"


def test_a_response_that_cant_be_sent_ends_all_samples() -> None:
    samples = Samples(in_pieces=True)
    samples.client.breaks = True
    with pytest.raises(RuntimeError, match="the pipe broke"):
        samples.give(0, "a", FinishReason.LENGTH)
    assert [failure.code for failure in samples.client.failures] == [ErrorCode.INTERNAL]
    assert samples.aborted == [(request_id, FinishReason.ERROR) for request_id in (7, 8, 9)]
