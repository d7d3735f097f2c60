"""The three ports of a server: HTTP, gRPC, metrics."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import astuple, dataclass

from pagetide_server.errors import ServerError


@dataclass(frozen=True)
class Ports:
    """Port numbers, each with the option of `pagetide serve` that changes it."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002

    def check_free(self, host: str) -> None:
        """Raises ServerError naming the busy port and its option."""
        if len(set(astuple(self))) < 3:
            raise ServerError(f"the three ports must differ; got {self.http}, {self.grpc}, {self.metrics}")
        for option, port in (("http", self.http), ("grpc", self.grpc), ("metrics", self.metrics)):
            _check_free(host, port, f"--{option}-port")


def free_ports(host: str = "127.0.0.1") -> Ports:
    """Three ports that nothing listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind((host, 0))
        http, grpc, metrics = (each.getsockname()[1] for each in sockets)
    return Ports(http, grpc, metrics)


def _check_free(host: str, port: int, option: str) -> None:
    if not 1 <= port <= 65535:
        raise ServerError(f"{option} is {port}; a port is 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ServerError(f"port {port} on {host}: {reason}; choose another with {option} N") from None
