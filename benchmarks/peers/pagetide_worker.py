"""Pagetide: the `engine` alone, or behind a real tritonserver, read by gRPC streams (`triton`)."""

from __future__ import annotations

import itertools
import json
import sys
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from benchmarks.peers.worker import Generate, serve
from pagetide_server.launcher import Server

REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"
MODEL = "smollm2"
RUNNING = 32


def load_engine() -> tuple[Generate, dict[str, str]]:
    import torch

    from pagetide.build import build
    from pagetide.config import Settings
    from pagetide.request import Output, Request, SamplingParams

    directory = REPOSITORY / MODEL / "1"
    values = json.loads((directory / "model.json").read_text()) | {"max_running": RUNNING}
    engine = build(Settings.from_mapping(values), directory, on_step=lambda stats: None).engine
    engine.start()
    ids = itertools.count()

    def submit(prompt: Sequence[int], count: int) -> SimpleQueue[Output]:
        outputs: SimpleQueue[Output] = SimpleQueue()
        params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        engine.submit(Request(next(ids), array("i", prompt), params, outputs.put, time.monotonic()))
        return outputs

    def collect(outputs: SimpleQueue[Output]) -> list[int]:
        tokens: list[int] = []
        while True:
            output = outputs.get()
            tokens += output.token_ids
            if output.finish_reason is not None:
                return tokens

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        queues = [submit(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
        return [collect(queue) for queue in queues]

    return generate, {"torch": torch.__version__}


def load_triton() -> tuple[Generate, dict[str, str]]:
    """The client sends text and counts tokens; which ones they were stays on the server."""
    import tritonclient

    from pagetide_client import Client

    server = Server(REPOSITORY)
    server.start()
    server.wait_ready(MODEL, timeout_s=300)
    client = Client(f"127.0.0.1:{server.grpc_port}", model=MODEL)
    decode = _decoder()
    pool = ThreadPoolExecutor(max_workers=64)

    def ask(prompt: str, count: int) -> list[int]:
        with client.stream(prompt, max_tokens=count, temperature=0.0, ignore_eos=True) as stream:
            return [0] * sum(delta.num_output_tokens for delta in stream)

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        return list(pool.map(ask, map(decode, prompts), counts))

    return generate, {"tritonclient": tritonclient.__version__}
