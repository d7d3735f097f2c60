"""Pagetide: the `engine` alone, or behind a real tritonserver, read by gRPC streams (`triton`)."""

from __future__ import annotations

import atexit
import gc
import itertools
import json
import sys
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from benchmarks.peers.worker import Generate, serve
from pagetide_server.launcher import Server

REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"
MODEL = "smollm2"
RUNNING = 32
NUM_REQUESTS = 64


def load_engine() -> tuple[Generate, dict[str, str]]:
    import torch

    from pagetide.build import build
    from pagetide.config import Settings
    from pagetide.request import Output, Request, SamplingParams

    directory = REPOSITORY / MODEL / "1"
    values = json.loads((directory / "model.json").read_text()) | {"max_running": RUNNING}
    engine = build(Settings.from_mapping(values), directory, on_step=lambda stats: None).engine
    engine.start()
    gc.freeze()  # as the server does
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
    """Every request is a gRPC stream of its own; its tokens are counted, which they are stays unknown."""
    server = Server(REPOSITORY)
    server.start()
    server.wait_ready(MODEL, timeout_s=300)
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=[("grpc.enable_http_proxy", 0)])
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    clients = ThreadPoolExecutor(max_workers=NUM_REQUESTS)
    atexit.register(server.stop)

    def ask(prompt: Sequence[int], count: int) -> list[int]:
        call = stub.ModelStreamInfer(iter((infer_request(prompt, count),)))
        return [0] * sum(map(num_tokens, call))

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        return list(clients.map(ask, prompts, counts))

    return generate, {"tritonclient": version("tritonclient")}


def infer_request(prompt: Sequence[int], count: int) -> Any:
    request = pb.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="input_ids", datatype="INT32", shape=[len(prompt)]).contents.int_contents.extend(
        prompt
    )
    sampling = json.dumps({"max_tokens": count, "temperature": 0, "ignore_eos": True}).encode()
    parameters = request.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    parameters.contents.bytes_contents.append(sampling)
    for flag in ("stream", "return_num_output_tokens"):
        request.inputs.add(name=flag, datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    for output in ("text_output", "num_output_tokens"):
        request.outputs.add(name=output)
    return request


def num_tokens(message: Any) -> int:
    if message.error_message:
        raise RuntimeError(message.error_message)
    names = [output.name for output in message.infer_response.outputs]
    raw = message.infer_response.raw_output_contents[names.index("num_output_tokens")]
    return int.from_bytes(raw, "little")


if __name__ == "__main__":
    serve(load_engine if sys.argv[1] == "engine" else load_triton)
