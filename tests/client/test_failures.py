"""What a client sees when a server is gone, silent, or breaks off."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from client_world import response
from tritonclient.grpc import service_pb2 as pb

from pagetide_client import (
    AsyncClient,
    Cancelled,
    Client,
    InvalidRequest,
    ModelNotFound,
    ModelVersion,
    PagetideError,
    Result,
    ServerError,
    ServerUnavailable,
    Timeout,
    Timeouts,
)
from pagetide_client.options import address
from pagetide_client.wire import choose_model

Start = Callable[[Callable[..., Iterator[Any]]], str]
Generate = Callable[[str, Timeouts], Result]


def generate_sync(url: str, timeouts: Timeouts) -> Result:
    with Client(url, timeouts=timeouts) as client:
        return client.generate("Hello")


def generate_async(url: str, timeouts: Timeouts) -> Result:
    async def generate() -> Result:
        async with AsyncClient(url, timeouts=timeouts) as client:
            return await client.generate("Hello")

    return asyncio.run(generate())


both = pytest.mark.parametrize("generate", [generate_sync, generate_async])


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@both
def test_no_server_fails_at_once_and_says_how_to_start_one(generate: Generate) -> None:
    url = f"127.0.0.1:{closed_port()}"
    with pytest.raises(ServerUnavailable, match=f"no server answers at {url} .*refused.*pagetide serve"):
        generate(url, Timeouts(connect_s=60))


@both
def test_a_silent_server_fails_after_the_connect_timeout(generate: Generate) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ServerUnavailable, match="no server answers"):
            generate(f"127.0.0.1:{silent.getsockname()[1]}", Timeouts(connect_s=0.2))


@both
def test_the_first_token_timeout_cancels_the_call(scripted: Start, generate: Generate) -> None:
    cancelled = threading.Event()

    def never(request: pb.ModelInferRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        context.add_callback(cancelled.set)
        assert cancelled.wait(60)
        yield from ()

    with pytest.raises(Timeout, match=r"no token within first_token_s = 0\.2 s"):
        generate(scripted(never), Timeouts(first_token_s=0.2))
    assert cancelled.wait(60)


@both
def test_the_first_token_timeout_ends_with_the_first_token(scripted: Start, generate: Generate) -> None:
    def slow_after_the_first(request: pb.ModelInferRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        yield response("a")
        assert not threading.Event().wait(0.6)
        yield response("b", "stop")

    result = generate(scripted(slow_after_the_first), Timeouts(first_token_s=0.5))
    assert (result.text, result.finish_reason) == ("ab", "stop")


@both
def test_a_stream_that_ends_early_is_an_error_and_no_result(scripted: Start, generate: Generate) -> None:
    def breaks_off(request: pb.ModelInferRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        yield response("a")

    with pytest.raises(ServerError, match="ended the stream before the request had finished"):
        generate(scripted(breaks_off), Timeouts())


@both
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, ServerUnavailable),
        (grpc.StatusCode.INTERNAL, ServerError),
        (grpc.StatusCode.UNKNOWN, ServerError),
    ],
)
def test_a_status_becomes_its_exception_with_the_servers_message(
    scripted: Start, generate: Generate, code: grpc.StatusCode, kind: type[PagetideError]
) -> None:
    def fails(request: pb.ModelInferRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        yield response("a")
        context.abort(code, "4096 requests wait; try again later")

    with pytest.raises(kind, match=r"^4096 requests wait; try again later$"):
        generate(scripted(fails), Timeouts())


@both
@pytest.mark.parametrize(
    ("message", "kind", "told"),
    [
        ("max_tokens is 0", InvalidRequest, "max_tokens is 0"),
        ("UNAVAILABLE: 4096 requests wait: too many", ServerUnavailable, "4096 requests wait: too many"),
        ("INTERNAL: the step failed", ServerError, "the step failed"),
        ("CANCELLED: the client left", Cancelled, "the client left"),
        ("Request for unknown model: 'x' is not found", ModelNotFound, "unknown model: 'x' is not found"),
        ("Server is stopping, so", ServerUnavailable, "Server is stopping, so"),
    ],
)
def test_an_error_in_the_stream_becomes_its_exception(
    scripted: Start, generate: Generate, message: str, kind: type[PagetideError], told: str
) -> None:
    def refuses(request: pb.ModelInferRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        yield pb.ModelStreamInferResponse(error_message=message)

    with pytest.raises(kind, match=f"{told}$"):
        generate(scripted(refuses), Timeouts())


def stream_sync(url: str) -> None:
    with Client(url) as client, client.stream("Hello") as stream:
        for delta in stream:
            if delta.finish_reason:
                break


def stream_async(url: str) -> None:
    async def stream() -> None:
        async with AsyncClient(url) as client, client.stream("Hello") as stream:
            async for delta in stream:
                if delta.finish_reason:
                    break

    asyncio.run(stream())


@pytest.mark.parametrize("stream", [stream_sync, stream_async])
@pytest.mark.parametrize(
    "last", [response("a", "stop"), pb.ModelStreamInferResponse(error_message="max_tokens is 0")]
)
def test_leaving_after_the_last_message_lets_the_call_end_uncancelled(
    scripted: Start, stream: Callable[[str], None], last: pb.ModelStreamInferResponse
) -> None:
    """Triton 24.10 never frees a request whose end meets a cancel, and can't unload its model then."""
    cancelled = []

    def ends_late(request: pb.ModelInferRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        gone = threading.Event()
        context.add_callback(gone.set)
        yield last
        cancelled.append(gone.wait(0.3))

    with contextlib.suppress(InvalidRequest):
        stream(scripted(ends_late))
    assert cancelled == [False]


def versions(**states: str) -> list[ModelVersion]:
    return [ModelVersion(name, "1", state, "") for name, state in states.items()]


def test_the_only_ready_model_is_meant_when_none_is_named() -> None:
    assert choose_model(versions(a="READY", smollm2="UNAVAILABLE"), "here") == "a"
    assert choose_model(versions(a="READY", smollm2="READY"), "here") == "smollm2"
    with pytest.raises(ModelNotFound, match="no model is ready at here"):
        choose_model(versions(a="UNAVAILABLE"), "here")
    with pytest.raises(ModelNotFound, match="several models are ready at here, name one of a, b"):
        choose_model(versions(b="READY", a="READY"), "here")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("host", "host:8001"),
        ("host:9", "host:9"),
        ("grpc://host:9/", "host:9"),
        ("[::1]", "[::1]:8001"),
        ("[::1]:9", "[::1]:9"),
    ],
)
def test_an_address_may_leave_out_the_port(given: str, expected: str) -> None:
    assert address(given) == expected


@pytest.mark.parametrize("given", ["", "http://host:8000", "grpc://"])
def test_an_address_of_another_kind_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="give host:port"):
        address(given)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ([], ServerError, "ended the call without statistics"),
        ([response("{}", "stop")], ServerError, "statistics can't be read: KeyError"),
        ([response("no", "stop")], ServerError, "statistics can't be read: JSONDecodeError"),
        ([pb.ModelStreamInferResponse(error_message="UNAVAILABLE: the engine stopped")], ServerUnavailable,
         "the engine stopped"),
    ],
)  # fmt: skip
def test_statistics_that_do_not_come_are_an_error(
    scripted: Start, answer: list[Any], error: type[PagetideError], message: str
) -> None:
    url = scripted(lambda request, context: iter(answer))
    with Client(url) as client, pytest.raises(error, match=message):
        client.statistics()
