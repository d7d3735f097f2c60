"""Responses go out in order, merged when they pile up, and nothing is asked or said after the last one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from pagetide.answer import Answer, ErrorCode, Failure, Reply
from pagetide.parse import ParsedRequest
from pagetide.request import FinishReason, Output, RequestStats, SamplingParams, TokenLogprobs
from pagetide.rounds import LEAST_ASK_GAP_S
from pagetide.senders import Sender, Senders, Stream

STATS = RequestStats(1, 1, 0, 0, 0.0, 0.0, 0.0, 0.0)
DEADLINE_S = 30.0


class Bytes:
    """A tokenizer whose ids are bytes."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        if 0 in ids:
            raise ValueError("token 0 is broken")
        return bytes(ids).decode(errors="replace")


@dataclass
class Client:
    """A channel that keeps what it is sent, and fails the test if it is used after its end."""

    sent: list[str] = field(default_factory=list)
    failure: Failure | None = None
    reply: Reply | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    gone: bool = False
    times_asked: int = 0
    misused: str = ""
    gate: threading.Event = field(default_factory=threading.Event)
    sending: threading.Event = field(default_factory=threading.Event)
    breaks: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    def send(self, reply: Reply, final: bool) -> None:
        self._check("sent to")
        self.sending.set()
        assert self.gate.wait(DEADLINE_S)
        if self.breaks:
            raise RuntimeError("the pipe broke")
        self.sent.append(reply.text)
        self.reply = reply
        if final:
            self.ended.set()

    def fail(self, failure: Failure) -> None:
        self._check("failed")
        self.failure = failure
        self.ended.set()

    def is_cancelled(self) -> bool:
        self._check("asked")
        self.times_asked += 1
        return self.gone

    def _check(self, what: str) -> None:
        if self.ended.is_set():
            self.misused = f"{what} after its last response"

    def wait(self) -> None:
        assert self.ended.wait(DEADLINE_S)


@dataclass
class Engine:
    """What senders tell: aborts, and what they count."""

    aborted: list[tuple[int, FinishReason]] = field(default_factory=list)
    finished: list[FinishReason] = field(default_factory=list)
    intervals: list[float] = field(default_factory=list)

    def abort(self, request_id: int, reason: FinishReason) -> None:
        self.aborted.append((request_id, reason))

    def on_finished(self, reason: FinishReason, stats: RequestStats | None) -> None:
        self.finished.append(reason)

    def on_intervals(self, intervals_s: tuple[float, ...]) -> None:
        self.intervals += intervals_s


@dataclass
class World:
    engine: Engine
    sender: Sender
    clients: list[Client] = field(default_factory=list)

    def open(self, stream: bool = True, **params: object) -> tuple[Client, Callable[..., None]]:
        """A client, and what delivers an output to it."""
        client = Client()
        parsed = ParsedRequest("p", "", stream, frozenset(), SamplingParams(**params))  # type: ignore[arg-type]
        opened = Stream(len(self.clients), client, Answer(parsed, [112], Bytes()))
        self.clients.append(client)
        self.sender.watch(opened)

        def deliver(text: str = "", reason: FinishReason | None = None, error: str | None = None) -> None:
            stats = STATS if reason else None
            self.sender.deliver(opened, Output(tuple(text.encode()), (), reason, error=error, stats=stats))

        return client, deliver


@pytest.fixture
def world() -> Iterator[World]:
    engine = Engine()
    sender = Sender("sender", engine.abort, engine, most_per_s=1000.0)
    sender.start()
    world = World(engine, sender)
    yield world
    sender.stop(DEADLINE_S)
    assert [client.misused for client in world.clients] == [""] * len(world.clients)


def test_tokens_go_out_in_order_and_the_last_response_has_data(world: World) -> None:
    client, deliver = world.open()
    for letter in "abcdefgh":
        deliver(letter)
    deliver("i", FinishReason.LENGTH)
    client.wait()
    assert "".join(client.sent) == "abcdefghi"
    assert client.sent[-1].endswith("i")
    assert client.reply is not None
    assert client.reply.finish_reason is FinishReason.LENGTH


def test_tokens_that_pile_up_behind_a_slow_send_go_out_as_one_response(world: World) -> None:
    client, deliver = world.open()
    client.gate.clear()
    deliver("a")
    assert client.sending.wait(DEADLINE_S)
    for letter in "bcdef":
        deliver(letter)
    client.gate.set()
    deliver("g", FinishReason.LENGTH)
    client.wait()
    assert client.sent[0] == "a"
    assert "".join(client.sent) == "abcdefg"
    assert len(client.sent) <= 3


def answered_once_in_100_s() -> tuple[Sender, Client, Callable[..., None]]:
    """A sender of such a rate, and a client that has its first response."""
    engine = Engine()
    sender = Sender("sender", engine.abort, engine, most_per_s=0.01)
    sender.start()
    client, deliver = World(engine, sender).open()
    deliver("a")
    assert client.sending.wait(DEADLINE_S)
    return sender, client, deliver


def test_beyond_the_rate_a_stream_gets_its_first_token_and_its_end_at_once_and_the_rest_merged() -> None:
    sender, client, deliver = answered_once_in_100_s()
    for letter in "bcd":
        deliver(letter)
    deliver("e", FinishReason.LENGTH)
    client.wait()
    sender.stop(DEADLINE_S)
    assert client.sent == ["a", "bcde"]


def test_a_sender_that_stops_first_sends_what_waits_for_its_round() -> None:
    sender, client, deliver = answered_once_in_100_s()
    deliver("b")
    sender.stop(DEADLINE_S)
    assert client.sent == ["a", "b"]


def test_not_streaming_is_one_response(world: World) -> None:
    client, deliver = world.open(stream=False)
    for letter in "abc":
        deliver(letter)
    deliver("d", FinishReason.LENGTH)
    client.wait()
    assert client.sent == ["abcd"]


def test_a_stop_string_ends_the_request_before_the_engine_does(world: World) -> None:
    client, deliver = world.open(stop=("##",))
    for letter in "ab##cd":
        deliver(letter)
    client.wait()
    deliver("e", FinishReason.STOP)
    world.sender.stop(DEADLINE_S)
    assert "".join(client.sent) == "ab"
    assert world.engine.aborted == [(0, FinishReason.STOP)]
    assert world.engine.finished == [FinishReason.STOP]


def test_a_client_that_left_ends_its_request_and_no_other(world: World) -> None:
    leaving, _ = world.open()
    staying, deliver = world.open()
    deliver("a")
    leaving.gone = True
    leaving.wait()
    deliver("b", FinishReason.LENGTH)
    staying.wait()
    assert leaving.failure is not None
    assert leaving.failure.code is ErrorCode.CANCELLED
    assert world.engine.aborted == [(0, FinishReason.CANCELLED)]
    assert "".join(staying.sent) == "ab"


def test_a_client_can_leave_while_its_tokens_flow(world: World) -> None:
    client, deliver = world.open()
    client.gone = True
    while not client.ended.is_set():
        deliver("a")
    deliver("", FinishReason.CANCELLED)
    world.sender.stop(DEADLINE_S)
    assert world.engine.finished == [FinishReason.CANCELLED]


def test_an_engine_error_is_told(world: World) -> None:
    client, deliver = world.open()
    deliver("a")
    deliver("", FinishReason.ERROR, "a step failed")
    client.wait()
    assert client.failure == Failure(ErrorCode.INTERNAL, "a step failed")
    world.sender.stop(DEADLINE_S)
    assert world.engine.aborted == []
    assert world.engine.finished == [FinishReason.ERROR]


def test_a_send_that_fails_ends_that_request_only(world: World) -> None:
    broken, deliver_to_broken = world.open()
    whole, deliver = world.open()
    broken.breaks = True
    deliver_to_broken("a")
    broken.wait()
    deliver("b", FinishReason.LENGTH)
    whole.wait()
    assert broken.failure is not None
    assert broken.failure.code is ErrorCode.INTERNAL
    assert world.engine.aborted == [(0, FinishReason.ERROR)]
    assert whole.sent == ["b"]


def test_a_last_response_that_fails_is_followed_by_an_error(world: World) -> None:
    client, deliver = world.open()
    client.breaks = True
    deliver("a", FinishReason.LENGTH)
    client.wait()
    assert client.failure is not None
    assert client.failure.code is ErrorCode.INTERNAL
    assert client.failure.message == "request 0: its response was not sent: the pipe broke"
    world.sender.stop(DEADLINE_S)
    assert world.engine.finished == [FinishReason.ERROR]


def test_a_detokenizer_that_fails_on_the_last_token_ends_and_counts_its_request(world: World) -> None:
    client, deliver = world.open()
    deliver("a")
    deliver("\0", FinishReason.LENGTH)
    client.wait()
    world.sender.stop(DEADLINE_S)
    assert client.failure is not None
    assert client.failure.code is ErrorCode.INTERNAL
    assert world.engine.finished == [FinishReason.ERROR]


def test_every_waiting_client_is_asked_at_a_bounded_rate(world: World) -> None:
    clients = [world.open()[0] for _ in range(20)]
    started_s = time.monotonic()
    while min(client.times_asked for client in clients) < 2:
        assert time.monotonic() - started_s < DEADLINE_S
        time.sleep(0.01)
    asked = sum(client.times_asked for client in clients)
    assert asked <= (time.monotonic() - started_s) / LEAST_ASK_GAP_S + 2
    assert max(client.times_asked for client in clients) - min(c.times_asked for c in clients) <= 2


def test_intervals_are_told_between_responses_with_tokens(world: World) -> None:
    client, deliver = world.open()
    for letter in "abcd":
        deliver(letter)
    deliver("e", FinishReason.LENGTH)
    client.wait()
    world.sender.stop(DEADLINE_S)
    assert len(world.engine.intervals) == 4
    assert all(interval >= 0 for interval in world.engine.intervals)


def test_the_last_intervals_are_told_also_when_nothing_follows(world: World) -> None:
    client, deliver = world.open()
    for letter in "abcd":
        deliver(letter)
    deliver("e", FinishReason.LENGTH)
    client.wait()
    started_s = time.monotonic()
    while len(world.engine.intervals) < 4:
        assert time.monotonic() - started_s < DEADLINE_S
        time.sleep(0.01)


def test_a_request_stays_on_its_sender_and_requests_are_dealt_out() -> None:
    engine = Engine()
    senders = Senders(3, engine.abort, engine, most_per_s=1000.0)
    assert [senders[i] is senders[i] for i in range(9)] == [True] * 9
    assert len({id(senders[i]) for i in range(9)}) == 3


def answer(params: SamplingParams, *returned: str, prompt: bytes = b"p") -> Answer:
    return Answer(ParsedRequest("p", "", True, frozenset(returned), params), list(prompt), Bytes())


def test_the_stop_token_is_no_part_of_the_text_unless_asked_for() -> None:
    for include, text in ((False, "a"), (True, "a!")):
        each = answer(SamplingParams(include_stop_str_in_output=include), "num_output_tokens", "stop_reason")
        each.take(Output(tuple(b"a!"), finish_reason=FinishReason.STOP, stop_reason=33))
        reply = each.reply()
        assert reply is not None
        assert reply.text == text
        assert reply.values == {"num_output_tokens": 2, "stop_reason": "33"}


def test_logprobs_run_with_the_tokens_and_add_up() -> None:
    each = answer(SamplingParams(logprobs=1), "logprobs", "cumulative_logprob")
    rows = (TokenLogprobs(-1.0, 3, ((98, -0.5),)), TokenLogprobs(-0.25, 1, ((98, -0.25),)))
    each.take(Output(tuple(b"ab"), rows, FinishReason.LENGTH))
    reply = each.reply()
    assert reply is not None
    assert reply.values["cumulative_logprob"] == -1.25
    assert reply.values["logprobs"] == (
        '[{"97": {"logprob": -1.0, "rank": 3, "decoded_token": "a"}, '
        '"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}, '
        '{"98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"}}]'
    )


def test_the_prompts_logprobs_come_with_the_first_reply_only() -> None:
    each = answer(SamplingParams(prompt_logprobs=1), "prompt_logprobs", prompt=b"xyc")
    each.take(Output(prompt_logprobs=(TokenLogprobs(-2.0, 7, ((98, -0.5),)),)))
    assert each.reply() is None
    each.take(Output(tuple(b"a"), prompt_logprobs=(TokenLogprobs(-0.5, 1, ((99, -0.5),)),)))
    first = each.reply()
    each.take(Output(tuple(b"b")))
    second = each.reply()
    assert first is not None
    assert second is not None
    assert json.loads(str(first.values["prompt_logprobs"])) == [
        None,
        {
            "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
            "121": {"logprob": -2.0, "rank": 7, "decoded_token": "y"},
        },
        {"99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"}},
    ]
    assert second.values["prompt_logprobs"] == "null"


def test_tokens_without_text_wait_for_the_next_that_has_some() -> None:
    each = answer(SamplingParams(), "num_output_tokens", "token_ids")
    each.take(Output(("漢".encode()[0],)))
    assert each.reply() is None
    each.take(Output(tuple("漢".encode()[1:])))
    reply = each.reply()
    assert reply is not None
    assert (reply.text, reply.finish_reason) == ("漢", None)
    assert reply.values == {"num_output_tokens": 3, "token_ids": list("漢".encode())}


def test_the_reason_to_stop_is_the_string_or_the_token_that_was_met() -> None:
    each = answer(SamplingParams(stop=("##",)), "stop_reason", "finish_reason", "token_ids")
    each.take(Output(tuple(b"a##b")))
    reply = each.reply()
    assert reply is not None
    assert reply.values == {"stop_reason": '"##"', "finish_reason": "stop", "token_ids": list(b"a##")}


def test_times_are_known_from_the_first_token_on() -> None:
    stats = RequestStats(1, 1, 16, 0, arrival_s=1.0, scheduled_s=1.5, first_token_s=2.25, finished_s=2.25)
    asked = ("queue_time_s", "prefill_time_s", "num_cached_tokens", "finish_reason")
    each = answer(SamplingParams(), *asked)
    each.take(Output(tuple(b"a"), stats=stats))
    for finish_reason, text in (("None", ""), ("length", "b")):
        if text:
            each.take(Output(tuple(text.encode()), finish_reason=FinishReason.LENGTH))
        reply = each.reply()
        assert reply is not None
        assert reply.values == dict(zip(asked, (0.5, 0.75, 16, finish_reason), strict=True))


def test_a_request_that_never_ran_was_queued_all_its_time() -> None:
    stats = RequestStats(1, 0, 0, 0, arrival_s=1.0, scheduled_s=None, first_token_s=None, finished_s=4.0)
    each = answer(SamplingParams(), "queue_time_s", "prefill_time_s")
    each.take(Output(finish_reason=FinishReason.TIMEOUT, stats=stats))
    reply = each.reply()
    assert reply is not None
    assert reply.values == {"queue_time_s": 3.0, "prefill_time_s": 0.0}


def test_what_is_no_stream_is_done_in_turn_and_may_fail(world: World) -> None:
    done = threading.Event()
    world.sender.run(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    world.sender.run(done.set)
    assert done.wait(DEADLINE_S)
    client, deliver = world.open()
    deliver("a", FinishReason.LENGTH)
    client.wait()
    assert client.sent == ["a"]
