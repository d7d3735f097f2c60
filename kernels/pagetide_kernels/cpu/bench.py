"""How near the CPU kernels come to the machine: `python -m pagetide_kernels.cpu.bench`.

Attention in bytes of KV read a second, beside what the machine reads from one long stream; linears beside
`F.linear` and oneDNN's packed weights. Shapes are SmolLM2-135M's. Times are CPU time divided by threads,
best of several, so that they mean something on a busy machine too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from pagetide_kernels import cpu, ops

HEADS, KV_HEADS, HEAD_SIZE, LAYERS = 9, 3, 64, 20
LINEARS = ((960, 576), (576, 576), (3072, 576), (576, 1536))
DTYPE = torch.bfloat16


def seconds(call: Callable[[int], object], rounds: int, repeats: int = 7) -> float:
    """Best time of one of `rounds` calls, each given its number."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for i in range(rounds):
            call(i)
        best = min(best, (time.process_time() - start) / rounds / torch.get_num_threads())
    return best


def read_bandwidth() -> float:
    """Bytes a second of one long stream."""
    stream = torch.ones(64 << 20)
    return stream.nbytes / seconds(lambda _: stream.sum(), 1)


def attention(num_sequences: int, num_queries: int, kv_len: int) -> tuple[float, float]:
    """Bytes of KV and floating point operations a second; each layer's KV is cold."""
    blocks = -(-kv_len // 16)
    table = torch.randperm(num_sequences * blocks).to(torch.int32).view(num_sequences, blocks)
    starts = (torch.arange(num_sequences + 1) * num_queries).to(torch.int32)
    lens = torch.full((num_sequences,), kv_len, dtype=torch.int32)
    query = torch.randn(num_sequences * num_queries, HEADS, HEAD_SIZE).to(DTYPE)
    caches = [
        ops.empty((table.numel(), 2, KV_HEADS, 16, HEAD_SIZE), DTYPE, torch.device("cpu")).normal_()
        for _ in range(LAYERS)
    ]
    out = torch.empty_like(query)

    def layer(i: int) -> Tensor:
        return ops.paged_attention(query, caches[i], table, starts, lens, HEAD_SIZE**-0.5, out=out)

    taken = seconds(layer, LAYERS)
    visible = num_queries * kv_len - num_queries * (num_queries - 1) // 2
    operations = 4 * HEADS * HEAD_SIZE * visible * num_sequences
    return caches[0].nbytes / taken, operations / taken


def with_torch(x: Tensor, weights: list[Tensor]) -> float:
    return seconds(lambda i: torch.nn.functional.linear(x, weights[i]), LAYERS)


def with_onednn(x: Tensor, weights: list[Tensor]) -> float:
    """Infinite on a CPU for which it has no bfloat16 kernels."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return float("inf")
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight, None) for weight in weights]
    pointwise = torch.ops.mkldnn._linear_pointwise
    return seconds(lambda i: pointwise(x, packed[i], None, "none", [], ""), LAYERS)


def with_ours(x: Tensor, weights: list[Tensor]) -> float:
    packed = [ops.pack_linear(weight) for weight in weights]
    return seconds(lambda i: ops.linear(x, packed[i]), LAYERS)


def linears(num_tokens: int) -> list[float]:
    """Seconds that the linears of LAYERS layers take with F.linear, oneDNN's packed weights, and ours."""
    weights = [[torch.randn(shape).to(DTYPE) for _ in range(LAYERS)] for shape in LINEARS]
    inputs = [torch.randn(num_tokens, width).to(DTYPE) for _, width in LINEARS]
    ways = (with_torch, with_onednn, with_ours)
    return [LAYERS * sum(map(way, inputs, weights)) for way in ways]


@torch.inference_mode()
def main() -> None:
    print(
        f"{cpu.isa()}, {torch.get_num_threads()} threads, one long stream {read_bandwidth() / 1e9:.1f} GB/s"
    )
    print("attention: sequences x queries at KV length")
    for shape in ((1, 1, 512), (8, 1, 512), (32, 1, 512), (1, 512, 512), (1, 256, 4096)):
        bandwidth, operations = attention(*shape)
        sequences, queries, kv_len = shape
        rates = f"{bandwidth / 1e9:6.1f} GB/s {operations / 1e9:7.1f} GFLOP/s"
        print(f"  {sequences:3d} x {queries:3d} at {kv_len:4d}: {rates}")
    print(f"linears of {LAYERS} layers, ms: tokens, F.linear, oneDNN packed, ours")
    for num_tokens in (1, 2, 4, 8, 16, 32, 128, 512):
        times = " ".join(f"{taken * 1e3:7.1f}" for taken in linears(num_tokens))
        print(f"  {num_tokens:3d}: {times}")


if __name__ == "__main__":
    main()
