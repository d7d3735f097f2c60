"""The sync client: any number of concurrent streams, from any threads, over one connection."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pagetide_client import wire
from pagetide_client.errors import PagetideError, from_rpc
from pagetide_client.options import DEFAULT_URL, Ask, Prompt, Sampling, Timeouts, Tool, address
from pagetide_client.results import Collector, Delta, ModelVersion, Result
from pagetide_client.statistics import Statistics

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Client:
    """Generates text on a Pagetide server.

    `url` is the server's gRPC address. `model` None takes the only model that is ready. The first call
    connects; threads may share one client, and every stream is its own gRPC call on its one connection.
    """

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
        self._connected = False
        self._channel = (
            grpc.secure_channel(self.url, credentials, wire.channel_options(self.url))
            if credentials
            else grpc.insecure_channel(self.url, wire.channel_options(self.url))
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def generate(
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
        """The whole completion of `prompt`, in one response. Raises a PagetideError.

        `tools` go to the chat template with messages. `details` fills those fields of `Sample` that are
        None or empty without it.
        """
        ask = Ask(prompt, False, model, version, request_id, tools, details, sampling)
        with self._start(ask, timeouts) as stream:
            for _ in stream:
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
    ) -> Stream:
        """Starts a generation; the stream gives its deltas as they come. Both raise a PagetideError.

        Leaving the stream's `with` block, `Stream.cancel` and dropping the stream cancel the request on
        the server. `version` "" is the newest one.
        """
        ask = Ask(prompt, True, model, version, request_id, tools, details, sampling)
        return self._start(ask, timeouts)

    def models(self) -> list[ModelVersion]:
        """Every model version the server knows, loaded or not."""
        return wire.model_versions(self._call("RepositoryIndex", pb.RepositoryIndexRequest()))

    def statistics(self, *, model: str | None = None, version: str = "") -> Statistics:
        """What a model version's engine is doing, within `connect_s`. Raises a PagetideError."""
        name = model or self._default_model()
        self._connect()
        request = wire.statistics_request(name, version)
        call = self._stub.ModelStreamInfer(iter((request,)), timeout=self.timeouts.connect_s)
        try:
            return wire.statistics(list(call), self.url)
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    def ready(self) -> bool:
        """Whether the server and every model it was started with are ready."""
        return bool(self._call("ServerReady", pb.ServerReadyRequest()).ready)

    def close(self) -> None:
        """Ends the connection; streams that still run are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, ask: Ask, timeouts: Timeouts | None) -> Stream:
        timeouts = timeouts or self.timeouts
        request = wire.infer_request(ask.model or self._default_model(), ask)
        self._connect()
        call = self._stub.ModelStreamInfer(iter((request,)), timeout=timeouts.total_s)
        return Stream(call, self.url, timeouts)

    def _default_model(self) -> str:
        if self._model is None:
            self._model = wire.choose_model(self.models(), self.url)
        return self._model

    def _connect(self) -> None:
        """Fails at once when nothing listens, and after `connect_s` when nothing answers."""
        if self._connected:
            return
        try:
            self._stub.ServerLive(pb.ServerLiveRequest(), timeout=self.timeouts.connect_s)
        except grpc.RpcError as error:
            raise wire.unreachable(self.url, error) from None
        self._connected = True

    def _call(self, method: str, request: Any) -> Any:
        self._connect()
        try:
            return getattr(self._stub, method)(request, timeout=self.timeouts.connect_s)
        except grpc.RpcError as error:
            raise from_rpc(error) from None


class Stream:
    """One running request: an iterator over its deltas. One thread iterates; any thread may cancel."""

    def __init__(self, call: Any, url: str, timeouts: Timeouts) -> None:
        self._call = call
        self._url = url
        self._timeouts = timeouts
        self._collector = Collector()
        self._pending: deque[Delta] = deque()
        self._watchdog = _Watchdog(call, timeouts.first_token_s)

    @property
    def result(self) -> Result:
        """What the stream has produced, once its last delta is here; raises Cancelled before that."""
        return self._collector.result()

    def cancel(self) -> None:
        """Ends the request on the server; a no-op when it has finished."""
        self._watchdog.stop()
        self._call.cancel()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        while not self._pending:
            self._pending.extend(self._collector.take(self._next_deltas()))
        return self._pending.popleft()

    def _next_deltas(self) -> list[Delta]:
        try:
            return self._receive()
        except StopIteration:
            self._collector.check_finished(self._url)
            raise
        except grpc.RpcError as error:
            raise self._reason(error) from None
        finally:
            self._watchdog.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()

    def _receive(self) -> list[Delta]:
        """Waits for the call's end before the last delta or an error is seen.

        A cancel that meets that end makes tritonserver 24.10 keep the request for ever, and its model loaded.
        """
        message = next(self._call)
        if wire.is_last(message):
            with contextlib.suppress(grpc.RpcError):
                deque(self._call, maxlen=0)
        return wire.deltas(message)

    def _reason(self, error: grpc.RpcError) -> PagetideError:
        if self._watchdog.expired:
            return self._timeouts.first_token_passed()
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._timeouts.total_passed()
        return from_rpc(error)


class _Watchdog:
    """Cancels a call whose first response does not come in time. It never holds the stream itself."""

    def __init__(self, call: Any, first_token_s: float | None) -> None:
        self.expired = False
        self._call = call
        self._timer: threading.Timer | None = None
        if first_token_s is not None:
            self._timer = threading.Timer(first_token_s, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self.expired = True
        self._call.cancel()
