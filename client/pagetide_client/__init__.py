"""Streaming client and command line for Pagetide. Needs no torch."""

from pagetide_client.aio import AsyncClient, AsyncStream
from pagetide_client.client import Client, Stream
from pagetide_client.errors import (
    Cancelled,
    InvalidRequest,
    ModelNotFound,
    PagetideError,
    ServerError,
    ServerUnavailable,
    Timeout,
)
from pagetide_client.options import Message, Prompt, Sampling, Timeouts, Tool
from pagetide_client.results import Delta, Logprob, ModelVersion, Result, Sample
from pagetide_client.statistics import PlannedStep, Statistics, TenantQueue

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Cancelled",
    "Client",
    "Delta",
    "InvalidRequest",
    "Logprob",
    "Message",
    "ModelNotFound",
    "ModelVersion",
    "PagetideError",
    "PlannedStep",
    "Prompt",
    "Result",
    "Sample",
    "Sampling",
    "ServerError",
    "ServerUnavailable",
    "Statistics",
    "Stream",
    "TenantQueue",
    "Timeout",
    "Timeouts",
    "Tool",
]
