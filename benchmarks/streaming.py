"""What a token costs on its way through Triton, beside its model: CPU time at 64 streams.

    OMP_WAIT_POLICY=PASSIVE PYTHONPATH=tests/pagetide python -m benchmarks.streaming \\
        [--raw docs/benchmarks/streaming.json]

A Llama of one narrow layer with random weights and the commonest of SmolLM2's tokens, on the CPU. Its
engine alone, then tritonserver with the same engine and 64 clients, who ask for text and token counts. The
cost is CPU time per token of tritonserver and its stub beyond that of the engine alone; the client's is told
beside it. First with the responses a second of this machine's CPUs, then with as many as a GPU gets.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tiny_checkpoints import make_checkpoint
from transformers import AutoTokenizer

from benchmarks.prefix_ttft import MODEL as TOKENIZER
from pagetide.build import build, resolve
from pagetide.config import Settings
from pagetide.request import Output, Request, SamplingParams
from pagetide_client import Client
from pagetide_server.launcher import Server

STREAMS, PROMPT = 64, "the and of to in a is that it for on with as by this"
OUTPUT_TOKENS, WARM_UP_TOKENS = 1500, 100
MODEL = {
    "vocab_size": 4096,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 64,
    "max_position_embeddings": 2048,
}
SETTINGS = {"device": "cpu", "max_running": STREAMS, "kv_cache_bytes": 2**28}
GPU_RESPONSES_PER_S = 10_000
STUB = """from pagetide.triton_adapter import TritonPythonModel

__all__ = ["TritonPythonModel"]
"""


@dataclass(frozen=True)
class Run:
    """What `STREAMS` requests took together. CPU seconds are of all threads; None where there is none."""

    tokens: int
    responses: int
    wall_s: float
    engine_s: float
    triton_s: float | None = None
    client_s: float | None = None

    def per_token_us(self, alone: Run) -> float:
        """Of tritonserver, and of its stub beyond the engine alone."""
        served_s = self.engine_s + (self.triton_s or 0.0)
        return 1e6 * (served_s / self.tokens - alone.engine_s / alone.tokens)

    def client_us(self) -> float:
        return 1e6 * (self.client_s or 0.0) / self.tokens


def cpu_s(pid: int) -> float:
    """What all threads of a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make_model(version: Path) -> Path:
    """The checkpoint and its `model.py`, in a version directory."""
    make_checkpoint(version, **MODEL)
    path = resolve(TOKENIZER, Path())
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(version)
    (version / "model.py").write_text(STUB)
    return version


def engine_alone(version: Path) -> Run:
    built = build(Settings.from_mapping(SETTINGS), version, on_step=lambda stats: None)
    prompt = array("i", built.tokenizer.encode(PROMPT))

    def ask(count: int) -> None:
        ended: list[Output] = []
        params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        for number in range(STREAMS):
            sink = lambda output: ended.append(output) if output.finish_reason else None  # noqa: E731
            built.engine.submit(Request(number, prompt, params, sink, time.monotonic()))
        while len(ended) < STREAMS:
            built.engine.turn(wait=False)

    ask(WARM_UP_TOKENS)
    started_s, cpu_started_s = time.perf_counter(), time.process_time()
    ask(OUTPUT_TOKENS)
    return Run(
        STREAMS * OUTPUT_TOKENS, 0, time.perf_counter() - started_s, time.process_time() - cpu_started_s
    )


def through_triton(server: Server) -> Run:
    pids = {"engine_s": server.stubs("null")[0].pid, "triton_s": server.pid, "client_s": os.getpid()}
    with Client(f"127.0.0.1:{server.grpc_port}", model="null") as client, streams(client) as ask:
        ask(WARM_UP_TOKENS)
        before_s = {name: cpu_s(pid) for name, pid in pids.items()}
        started_s = time.perf_counter()
        counts = ask(OUTPUT_TOKENS)
        wall_s = time.perf_counter() - started_s
        used_s = {name: cpu_s(pid) - before_s[name] for name, pid in pids.items()}
    return Run(sum(counts), len(counts), wall_s, **used_s)


@contextmanager
def streams(client: Client) -> Iterator[Callable[[int], Sequence[int]]]:
    """Asks on all streams at once; gives the number of tokens in each response."""

    def one(count: int) -> list[int]:
        with client.stream(PROMPT, max_tokens=count, temperature=0.0, ignore_eos=True) as stream:
            return [delta.num_output_tokens for delta in stream]

    with ThreadPoolExecutor(STREAMS) as pool:
        yield lambda count: [n for each in pool.map(one, [count] * STREAMS) for n in each]


def measure(folder: Path) -> dict[str, Run]:
    runs = {}
    version = make_model(folder / "null" / "1")
    runs["engine alone"] = engine_alone(version)
    for name, most in (("as on a CPU", 0), ("as on a GPU", GPU_RESPONSES_PER_S)):
        (version / "model.json").write_text(json.dumps(SETTINGS | {"max_responses_per_s": most}))
        with Server(folder, device="cpu", log_path=folder.parent / f"{most}.log") as server:
            server.wait_ready("null")
            runs[name] = through_triton(server)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, help="where to write all that was measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(Path(folder) / "repository")
    alone = runs["engine alone"]
    rate, cost_us = alone.tokens / alone.wall_s, 1e6 * alone.engine_s / alone.tokens
    print(f"engine alone: {rate:.0f} tokens/s, {cost_us:.0f} us of CPU a token")
    for name, run in list(runs.items())[1:]:
        print(
            f"through Triton, responses {name}: {run.tokens / run.wall_s:.0f} tokens/s in "
            f"{run.responses / run.wall_s:.0f} responses/s; {run.per_token_us(alone):.0f} us of CPU a token, "
            f"the client {run.client_us():.0f} us more"
        )
    if options.raw:
        numbers = {name: asdict(run) for name, run in runs.items()}
        options.raw.write_text(json.dumps({"load_average": os.getloadavg(), **numbers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
