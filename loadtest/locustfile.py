"""Load test of a running Pagetide server. From the project's root:

    locust -f loadtest/locustfile.py --headless -u 8 -t 2m Completion Chat Cancels LongPrompts
    locust -f loadtest/locustfile.py --headless -u 1 -t 2m OpenLoop --rate 4
    locust -f loadtest/locustfile.py --headless -u 1 -t 2m OpenLoop --trace azure_llm_2023_conv.csv

docs/loadtest.md explains the options and the report.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

import gevent
import grpc.experimental.gevent
from locust import events
from locust.env import Environment

from loadtest import options
from loadtest.run import Run
from loadtest.users import Cancels, Chat, Completion, LongPrompts, OpenLoop, Streaming

__all__ = ["Cancels", "Chat", "Completion", "LongPrompts", "OpenLoop"]

MAX_CONNECTIONS = 4096

# Before the first connection: gRPC's own threads would block gevent's loop. Each open connection keeps one
# thread of gevent's pool; at the default of 10 the eleventh would wait for ever.
grpc.experimental.gevent.init_gevent()
gevent.get_hub().threadpool.maxsize = MAX_CONNECTIONS


@events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    options.add(parser)


@events.test_start.add_listener
def _start(environment: Environment, **_: Any) -> None:
    assert environment.parsed_options is not None
    Streaming.arguments = environment.parsed_options
    Streaming.session = Run(environment, environment.parsed_options)


@events.test_stop.add_listener
def _stop(**_: Any) -> None:
    Streaming.session.finish()


@events.quitting.add_listener
def _judge(environment: Environment, **_: Any) -> None:
    fault = Streaming.session.fault()
    if fault:
        print(f"FAILED: {fault}")
        environment.process_exit_code = 1


@events.quit.add_listener
def _leave(exit_code: int, **_: Any) -> None:
    """Ends the process before Python closes the gRPC channels, which hangs under gevent."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)

    atexit.register(leave)
