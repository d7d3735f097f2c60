"""What can go wrong, as exceptions that keep the server's own message."""

# ruff: noqa: N818 - the names say what happened, and `except Timeout` reads well

from __future__ import annotations

import grpc


class PagetideError(Exception):
    """Base of everything this client raises."""


class ServerUnavailable(PagetideError):
    """No server answers at the address, it refuses more work, or the connection was lost."""


class InvalidRequest(PagetideError):
    """The server refused the request; the message names the field, the value and the limit."""


class ModelNotFound(PagetideError):
    """The server has no such model or version, or it is not ready."""


class Cancelled(PagetideError):
    """The request was cancelled before it finished."""


class Timeout(PagetideError):
    """One of the request's `Timeouts` passed; the request was cancelled on the server."""


class ServerError(PagetideError):
    """The server failed while it worked on the request."""


_BY_CODE: dict[grpc.StatusCode, type[PagetideError]] = {
    grpc.StatusCode.UNAVAILABLE: ServerUnavailable,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.RESOURCE_EXHAUSTED: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.DEADLINE_EXCEEDED: Timeout,
}


def from_rpc(error: grpc.RpcError) -> PagetideError:
    """The exception for a failed call, with the server's message."""
    code, details = error.code(), error.details()
    return _BY_CODE.get(code, ServerError)(details or code.name)


_BY_PREFIX: dict[str, type[PagetideError]] = {
    "UNAVAILABLE": ServerUnavailable,
    "CANCELLED": Cancelled,
    "INTERNAL": ServerError,
}


def from_message(message: str) -> PagetideError:
    """The exception for an error inside a stream.

    Triton streams an error's text without its code. Pagetide begins the text with the code unless that is
    INVALID_ARG; what Triton itself refuses is told by its wording.
    """
    prefix, _, rest = message.partition(": ")
    if prefix in _BY_PREFIX:
        return _BY_PREFIX[prefix](rest)
    if "unknown model" in message or "no available versions" in message:
        return ModelNotFound(message)
    if message.startswith(("Server is stopping", "Stub process")) or "not ready" in message:
        return ServerUnavailable(message)
    return InvalidRequest(message)
