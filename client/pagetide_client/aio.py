"""The asyncio client, with the sync client's methods as coroutines."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pagetide_client import wire
from pagetide_client.errors import Cancelled, from_rpc
from pagetide_client.options import DEFAULT_URL, Ask, Prompt, Sampling, Timeouts, Tool, address
from pagetide_client.results import Collector, Delta, ModelVersion, Result
from pagetide_client.statistics import Statistics

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncClient:
    """`Client` for one event loop, the one that is running at its first call."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        model: str | None = None,
        timeouts: Timeouts | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.url = address(url)
        self.timeouts = timeouts or Timeouts()
        self._model = model
        self._credentials = credentials
        self._channel: Any = None
        self._stub: Any = None
        self._connected = False

    async def generate(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        version: str = "",
        request_id: str = "",
        timeouts: Timeouts | None = None,
        tools: Sequence[Tool] | None = None,
        details: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Result:
        """The whole completion of `prompt`, in one response. Raises a PagetideError."""
        ask = Ask(prompt, False, model, version, request_id, tools, details, sampling)
        stream = AsyncStream(self, ask, timeouts)
        async with stream:
            async for _ in stream:
                pass
        return stream.result

    def stream(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        version: str = "",
        request_id: str = "",
        timeouts: Timeouts | None = None,
        tools: Sequence[Tool] | None = None,
        details: bool = False,
        **sampling: Unpack[Sampling],
    ) -> AsyncStream:
        """A generation's deltas as they come; it starts at the first one asked for.

        Raises a PagetideError while iterating. Leaving the stream's `async with` block, `cancel`, dropping
        the stream and cancelling the task that waits for it cancel the request on the server.
        """
        ask = Ask(prompt, True, model, version, request_id, tools, details, sampling)
        return AsyncStream(self, ask, timeouts)

    async def models(self) -> list[ModelVersion]:
        """Every model version the server knows, loaded or not."""
        return wire.model_versions(await self._call("RepositoryIndex", pb.RepositoryIndexRequest()))

    async def statistics(self, *, model: str | None = None, version: str = "") -> Statistics:
        """What a model version's engine is doing, within `connect_s`. Raises a PagetideError."""
        await self._connect()
        request = wire.statistics_request(model or await self._default_model(), version)
        call = self._stub.ModelStreamInfer(iter((request,)), timeout=self.timeouts.connect_s)
        try:
            return wire.statistics([message async for message in call], self.url)
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    async def ready(self) -> bool:
        """Whether the server and every model it was started with are ready."""
        return bool((await self._call("ServerReady", pb.ServerReadyRequest())).ready)

    async def close(self) -> None:
        """Ends the connection; streams that still run are cancelled."""
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self, ask: Ask, timeouts: Timeouts) -> Any:
        """Connects if need be and sends the request; gives the gRPC call."""
        await self._connect()
        request = wire.infer_request(ask.model or await self._default_model(), ask)
        return self._stub.ModelStreamInfer(iter((request,)), timeout=timeouts.total_s)

    async def _default_model(self) -> str:
        if self._model is None:
            self._model = wire.choose_model(await self.models(), self.url)
        return self._model

    def _open(self) -> None:
        """gRPC binds a channel to the running loop, so it is made here and not in `__init__`."""
        if self._credentials:
            self._channel = grpc.aio.secure_channel(
                self.url, self._credentials, wire.channel_options(self.url)
            )
        else:
            self._channel = grpc.aio.insecure_channel(self.url, wire.channel_options(self.url))
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def _connect(self) -> None:
        """Fails at once when nothing listens, and after `connect_s` when nothing answers."""
        if self._connected:
            return
        if self._channel is None:
            self._open()
        try:
            await self._stub.ServerLive(pb.ServerLiveRequest(), timeout=self.timeouts.connect_s)
        except grpc.RpcError as error:
            raise wire.unreachable(self.url, error) from None
        self._connected = True

    async def _call(self, method: str, request: Any) -> Any:
        await self._connect()
        try:
            return await getattr(self._stub, method)(request, timeout=self.timeouts.connect_s)
        except grpc.RpcError as error:
            raise from_rpc(error) from None


class AsyncStream:
    """One request as an asynchronous iterator over its deltas; one task iterates."""

    def __init__(self, client: AsyncClient, ask: Ask, timeouts: Timeouts | None) -> None:
        self._call: Any = None
        self._cancelled = False
        self._client = client
        self._timeouts = timeouts or client.timeouts
        self._ask = ask
        self._collector = Collector()
        self._pending: deque[Delta] = deque()

    @property
    def result(self) -> Result:
        """What the stream has produced, once its last delta is here; raises Cancelled before that."""
        return self._collector.result()

    def cancel(self) -> None:
        """Ends the request on the server; a no-op when it has finished."""
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._cancelled:
            raise Cancelled("the stream was cancelled")
        while not self._pending:
            self._pending.extend(self._collector.take(await self._next_deltas()))
        return self._pending.popleft()

    async def _next_deltas(self) -> list[Delta]:
        if self._call is None:
            self._call = await self._client.start(self._ask, self._timeouts)
        message = await self._read()
        if message is grpc.aio.EOF:
            self._collector.check_finished(self._client.url)
            raise StopAsyncIteration
        if wire.is_last(message):
            await self._see_the_end()
        return wire.deltas(message)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()

    async def _see_the_end(self) -> None:
        """As in `Stream`, so that no cancel meets the end of the call."""
        with contextlib.suppress(grpc.RpcError):
            while await self._call.read() is not grpc.aio.EOF:
                pass

    async def _read(self) -> Any:
        """The next message, or EOF. A task cancelled from outside stays an asyncio.CancelledError."""
        first_s = self._timeouts.first_token_s if not self._collector.deltas else None
        try:
            return await asyncio.wait_for(self._call.read(), first_s)
        except asyncio.TimeoutError:
            self._call.cancel()
            raise self._timeouts.first_token_passed() from None
        except asyncio.CancelledError:
            if not self._cancelled:
                self._call.cancel()
                raise
            raise Cancelled("the stream was cancelled") from None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._timeouts.total_passed() from None
            raise from_rpc(error) from None
