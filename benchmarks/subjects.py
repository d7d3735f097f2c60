"""Who is measured: the engine alone, the engine behind Triton, and transformers, on the same weights."""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

import torch

from benchmarks.measure import Trace, closed_loop
from benchmarks.workload import Ask
from pagetide.build import Built, build, resolve
from pagetide.config import Settings
from pagetide.request import Output, Request, SamplingParams
from pagetide_client import Client
from pagetide_server.launcher import Server


class Subject(Protocol):
    name: str

    def run(self, asks: Sequence[Ask], concurrency: int) -> list[Trace]: ...


class EngineAlone:
    """The engine in this process: no Triton, no gRPC, no text."""

    name = "engine alone"

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._built: Built = build(settings, directory, on_step=lambda stats: None)
        self._built.engine.start()
        self._ids = itertools.count()

    def encode(self, text: str) -> list[int]:
        return list(self._built.tokenizer.encode(text))

    def run(self, asks: Sequence[Ask], concurrency: int) -> list[Trace]:
        return closed_loop(asks, concurrency, self._serve)

    def _serve(self, ask: Ask, trace: Trace) -> None:
        outputs: SimpleQueue[tuple[float, Output]] = SimpleQueue()
        params = SamplingParams(max_tokens=ask.max_tokens, temperature=0.0, ignore_eos=True)
        self._built.engine.submit(
            Request(
                id=next(self._ids),
                prompt_ids=array("i", self.encode(ask.prompt)),
                params=params,
                sink=lambda output: outputs.put((time.perf_counter(), output)),
                arrival_s=time.monotonic(),
            )
        )
        while True:
            now_s, output = outputs.get()
            trace.arrivals.append((now_s, len(output.token_ids)))
            if output.finish_reason is not None:
                return


class ThroughTriton:
    """A real tritonserver over the default repository, read by gRPC streams on this machine."""

    name = "through Triton"

    def __init__(self, repository: Path) -> None:
        self._server = Server(repository)

    def __enter__(self) -> ThroughTriton:
        self._server.start()
        self._server.wait_ready("smollm2", timeout_s=300)
        self._client = Client(f"127.0.0.1:{self._server.grpc_port}", model="smollm2")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._server.stop()

    def run(self, asks: Sequence[Ask], concurrency: int) -> list[Trace]:
        return closed_loop(asks, concurrency, self._serve)

    def _serve(self, ask: Ask, trace: Trace) -> None:
        with self._client.stream(
            ask.prompt, max_tokens=ask.max_tokens, temperature=0.0, ignore_eos=True
        ) as stream:
            for delta in stream:
                trace.arrivals.append((time.perf_counter(), delta.num_output_tokens))


class Transformers:
    """`generate` of transformers in bfloat16, one left-padded static batch after the other."""

    name = "transformers"

    def __init__(self, model: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        path = resolve(model, Path())
        unpacked = GgufConfig(gguf_file=path.name, dequantize=True)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(
            path.parent, gguf_file=path.name, padding_side="left"
        )
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.bfloat16, quantization_config=unpacked
        ).to(torch.bfloat16)
        self._tokenizer.pad_token = self._tokenizer.pad_token or self._tokenizer.eos_token

    def run(self, asks: Sequence[Ask], concurrency: int) -> list[Trace]:
        traces: list[Trace] = []
        for start in range(0, len(asks), concurrency):
            traces += self._generate(asks[start : start + concurrency])
        return traces

    def _generate(self, asks: Sequence[Ask]) -> list[Trace]:
        """All rows run as long as the longest; a row's tokens count up to its own `max_tokens`."""
        traces = [Trace(time.perf_counter()) for _ in asks]

        def on_step(input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            for ask, trace in zip(asks, traces, strict=True):
                if trace.num_tokens < ask.max_tokens:
                    trace.arrivals.append((time.perf_counter(), 1))
            return torch.zeros(len(asks), dtype=torch.bool)

        batch = self._tokenizer([ask.prompt for ask in asks], return_tensors="pt", padding=True)
        longest = max(ask.max_tokens for ask in asks)
        self._model.generate(
            **batch,
            do_sample=False,
            min_new_tokens=longest,
            max_new_tokens=longest,
            stopping_criteria=[on_step],
            pad_token_id=self._tokenizer.pad_token_id,
        )
        return traces
