"""Measures the CUDA kernels on a GPU: `python -m pagetide_kernels.bench [--quick]` (`make bench-kernels`).

Decode: achieved bandwidth (KV bytes / time) over the bandwidth of a measured copy. Prefill: TFLOP/s beside
torch's own attention on the same numbers without paging. Launches: microseconds a call on the host. Times
are medians of CUDA events, each run after the L2 cache was overwritten.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pagetide_kernels.roofline import LLAMA_8B, LLAMA_8B_FP8, SMOLLM2, Shape
from pagetide_kernels.signatures import BLOCK_SIZE

BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = (256, 1024, 4096, 16384, 131072)
PREFILLS = (512, 2048, 8192, 32768)
_MAX_KV_BYTES = 32 * 2**30
_L2_BYTES = 256 * 2**20
_REPEATS = 20


@dataclass(frozen=True)
class Batch:
    """Arguments of `paged_attention` for equal sequences, and the KV bytes it must read."""

    tensors: tuple[Tensor, ...]
    scale: float
    max_query_len: int
    kv_bytes: int


def make_batch(shape: Shape, batch: int, queries: int, context: int, device: torch.device) -> Batch:
    """`batch` sequences of `context` tokens, the last `queries` of them new; blocks in random order."""
    width = -(-context // BLOCK_SIZE)
    head_dim = shape.form.head_dim
    dtype = torch.float8_e4m3fn if shape.form.cache == "e4m3" else torch.bfloat16
    cache_shape = (batch * width, 2, shape.num_kv_heads, BLOCK_SIZE, head_dim)
    cache = torch.empty(cache_shape, dtype=torch.bfloat16, device=device).normal_().to(dtype)
    table = torch.randperm(batch * width, device=device).to(torch.int32).view(batch, width)
    starts = torch.arange(0, batch * queries + 1, queries, dtype=torch.int32, device=device)
    lens = torch.full((batch,), context, dtype=torch.int32, device=device)
    query_shape = (batch * queries, shape.num_heads, head_dim)
    query = torch.randn(query_shape, dtype=torch.bfloat16, device=device)
    tensors = (torch.empty_like(query), query, cache, table, starts, lens)
    return Batch(tensors, head_dim**-0.5, queries, batch * context * shape.kv_bytes_per_token)


def median_seconds(run: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Of `repeats` runs on the current stream, each with a cold L2 cache."""
    flush = torch.empty(_L2_BYTES, dtype=torch.uint8, device="cuda")
    run()
    times: list[float] = []
    for _ in range(repeats):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes read and written a second by a copy of 2 GiB: what memory can do."""
    source = torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * len(source) / median_seconds(lambda: target.copy_(source))


def attend(batch: Batch) -> Callable[[], None]:
    from pagetide_kernels.cuda import kernels_for

    kernels = kernels_for(batch.tensors[0].device)
    return lambda: kernels.paged_attention(
        batch.tensors, (batch.scale, 0, 0.0, 1.0, 1.0), batch.max_query_len
    )


def decode_cases() -> Iterator[tuple[Shape, int, int]]:
    for shape in (LLAMA_8B, LLAMA_8B_FP8, SMOLLM2):
        for batch in BATCHES:
            for context in CONTEXTS:
                if batch * context * shape.kv_bytes_per_token <= _MAX_KV_BYTES:
                    yield shape, batch, context


def bench_decode(cases: Sequence[tuple[Shape, int, int]]) -> None:
    limit = copy_bandwidth()
    print(f"copy bandwidth {limit / 1e12:.2f} TB/s\n")
    print("| shape | batch | context | µs | TB/s | of copy bandwidth |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for shape, size, context in cases:
        batch = make_batch(shape, size, 1, context, torch.device("cuda"))
        seconds = median_seconds(attend(batch))
        rate = batch.kv_bytes / seconds
        row = f"| {shape.name} | {size} | {context} | {seconds * 1e6:.1f} | {rate / 1e12:.2f}"
        print(f"{row} | {rate / limit:.0%} |", flush=True)


def bench_prefill(lengths: Sequence[int]) -> None:
    print("\n| shape | tokens | µs | TFLOP/s | torch SDPA TFLOP/s |\n| --- | ---: | ---: | ---: | ---: |")
    for shape in (LLAMA_8B, SMOLLM2):
        for tokens in lengths:
            flops = 2 * tokens * tokens * shape.form.head_dim * shape.num_heads
            seconds = median_seconds(attend(make_batch(shape, 1, tokens, tokens, torch.device("cuda"))))
            theirs = median_seconds(_sdpa(shape, tokens))
            row = f"| {shape.name} | {tokens} | {seconds * 1e6:.0f} | {flops / seconds / 1e12:.0f}"
            print(f"{row} | {flops / theirs / 1e12:.0f} |", flush=True)


def _sdpa(shape: Shape, tokens: int) -> Callable[[], Tensor]:
    def heads(count: int) -> Tensor:
        size = (1, count, tokens, shape.form.head_dim)
        return torch.randn(size, dtype=torch.bfloat16, device="cuda")

    query, key, value = heads(shape.num_heads), heads(shape.num_kv_heads), heads(shape.num_kv_heads)
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(query, key, value, is_causal=True, enable_gqa=True)


def bench_launches(count: int = 1000) -> None:
    run = attend(make_batch(SMOLLM2, 1, 1, 16, torch.device("cuda")))
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        run()
    host = (time.perf_counter() - start) / count
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            run()
    replayed = median_seconds(graph.replay) / count
    print(f"\nlaunch: {host * 1e6:.1f} µs on the host; {replayed * 1e6:.1f} µs a call in a CUDA graph")


def bench_start() -> None:
    """A launcher that has loaded nothing, as in a process just started; the disk cache is warm by now."""
    from pagetide_kernels.cuda_launch import CudaLauncher
    from pagetide_kernels.device_ops import DeviceOps

    batch = make_batch(SMOLLM2, 1, 40, 40, torch.device("cuda"))
    start = time.perf_counter()
    DeviceOps(CudaLauncher(batch.tensors[0].device)).paged_attention(
        batch.tensors, (batch.scale, 0, 0.0, 1.0, 1.0), batch.max_query_len
    )
    torch.cuda.synchronize()
    print(f"warm start: {(time.perf_counter() - start) * 1e3:.0f} ms for both attention kernels")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pagetide_kernels.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few sizes of each")
    quick = parser.parse_args(arguments).quick
    if not torch.cuda.is_available():
        print("no GPU: nothing to measure; python -m pagetide_kernels.roofline predicts", file=sys.stderr)
        return 1
    print(torch.cuda.get_device_name())
    bench_decode(list(decode_cases())[:: 7 if quick else 1])
    bench_prefill(PREFILLS[:2] if quick else PREFILLS)
    bench_launches()
    bench_start()
    return 0


if __name__ == "__main__":
    sys.exit(main())
