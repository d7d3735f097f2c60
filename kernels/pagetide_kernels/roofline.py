"""What the attention kernels should take on a GPU, from bytes, FLOPs and occupancy. No GPU is needed.

    python -m pagetide_kernels.roofline

prints the tables of docs/kernels.md. Everything assumed stands in `H200` and beside the functions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from pagetide_kernels.attention_plan import Decode, Form, Prefill, max_runs
from pagetide_kernels.compile import resources

_MICRO = 1e-6


@dataclass(frozen=True)
class Gpu:
    """A GPU's limits. Rates are per second."""

    name: str
    arch: str
    multiprocessors: int
    registers: int  # of a multiprocessor
    shared_bytes: int  # of a multiprocessor
    max_warps: int
    peak_bytes: float  # the data sheet's memory bandwidth
    copy_share: float  # of it that a large copy reaches
    latency_s: float  # of a read from memory under load
    peak_flops: float  # dense bf16 tensor cores
    mma_share: float  # of it that mma.sync reaches (wgmma is needed for the rest)


# Data sheet: 4.8 TB/s, 989 TFLOP/s, 132 multiprocessors, 227 KiB of shared memory a block. Copies reach
# about 92 %. mma.sync reaches about 62 % of Hopper's peak (Luo et al., "Benchmarking and Dissecting the
# Nvidia Hopper GPU Architecture via Microbenchmarking", 2024).
H200 = Gpu("H200", "sm_90", 132, 65536, 228 * 1024, 64, 4.8e12, 0.92, 0.8 * _MICRO, 989e12, 0.62)

_BLOCK_OVERHEAD_BYTES = 1024  # of shared memory, taken by the system for each block of threads
_REGISTER_UNIT = 256  # registers are given to a warp in units
# Of a multiprocessor, each clock.
_TENSOR_FLOPS = 4096
_SHARED_BYTES = 128
_EXPONENTIALS = 16
_L2_BYTES = 64
_FLOAT_OPS = 128
_SCORE_OPS = 5  # of a score: compare, scale and subtract, add, round, and its share of shrinking the outputs
_LAUNCH_S = 3 * _MICRO
_UNIT_START_S = 1.5 * _MICRO  # of a run: the table, then the first blocks, each a trip to memory


@dataclass(frozen=True)
class Occupancy:
    """Blocks of threads of one kernel that a multiprocessor holds, and what limits them."""

    blocks: int
    limit: str


def occupancy(gpu: Gpu, registers: int, threads: int, shared_bytes: int) -> Occupancy:
    warps = threads // 32
    warp_registers = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    limits = {
        "registers": gpu.registers // (warp_registers * warps),
        "shared memory": gpu.shared_bytes // (shared_bytes + _BLOCK_OVERHEAD_BYTES),
        "warps": gpu.max_warps // warps,
    }
    limit = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limit], limit)


@dataclass(frozen=True)
class Shape:
    """One layer's attention of a model."""

    name: str
    num_heads: int
    num_kv_heads: int
    form: Form

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_kv_heads * self.form.tile_bytes // 16


LLAMA_8B = Shape("Llama 8B", 32, 8, Form(128, "bf16", "bf16"))
LLAMA_8B_FP8 = Shape("Llama 8B, e4m3 KV", 32, 8, Form(128, "bf16", "e4m3"))
SMOLLM2 = Shape("SmolLM2 135M", 9, 3, Form(64, "bf16", "bf16"))


@functools.cache
def decode_occupancy(gpu: Gpu, form: Form) -> Occupancy:
    plan = Decode(form)
    used = resources(plan.kernel, gpu.arch)
    return occupancy(gpu, used.registers, plan.threads, plan.shared_bytes)


def bytes_in_flight(form: Form, blocks: int) -> int:
    """Of cp.async copies, a multiprocessor, while every ring is full."""
    plan = Decode(form)
    stages = 1 if form.head_dim > 128 else 2  # one stage is being read
    return blocks * plan.num_warps * stages * 2 * form.tile_bytes


def decode_seconds(gpu: Gpu, shape: Shape, batch: int, context: int) -> tuple[float, float]:
    """Time of one layer, and its bound: KV bytes at the copy bandwidth.

    A round of units (run, KV head) has the copy bandwidth to share, or less when what is in flight does
    not cover the latency (Little's law). Runs write and read their partial outputs through L2.
    """
    units = batch * max_runs(-(-context // 16)) * shape.num_kv_heads
    slots = gpu.multiprocessors * decode_occupancy(gpu, shape.form).blocks
    kv_bytes = batch * context * shape.kv_bytes_per_token
    copy = gpu.peak_bytes * gpu.copy_share
    in_flight = min(units, slots) * bytes_in_flight(shape.form, 1)
    bandwidth = min(copy, in_flight / gpu.latency_s)
    partials = units * (shape.num_heads // shape.num_kv_heads) * (shape.form.head_dim + 2) * 4
    partial_bytes = 2 * partials if max_runs(-(-context // 16)) > 1 else 0
    rounds = -(-units // slots)
    starts = _UNIT_START_S * (1 + (rounds - 1) / decode_occupancy(gpu, shape.form).blocks)
    return _LAUNCH_S + starts + (kv_bytes + partial_bytes) / bandwidth, kv_bytes / copy


def prefill_seconds(gpu: Gpu, shape: Shape, tokens: int) -> tuple[float, float]:
    """Time of one layer of causal attention over `tokens` new tokens, and its FLOPs.

    Products go at the slower of the tensor cores and the shared memory that feeds them; the softmax is
    taken to run after them, not beside: an upper bound, since two blocks of threads share a multiprocessor.
    """
    flops = 2 * tokens * tokens * shape.form.head_dim * shape.num_heads  # half of 4, by causality
    scores = tokens * tokens / 2 * shape.num_heads
    clock = gpu.peak_flops / (gpu.multiprocessors * _TENSOR_FLOPS)
    products = flops / min(gpu.peak_flops * gpu.mma_share, _shared_memory_flops(gpu, shape.form, clock))
    softmax = scores * (1 / _EXPONENTIALS + _SCORE_OPS / _FLOAT_OPS) / (gpu.multiprocessors * clock)
    return _LAUNCH_S + products + softmax, flops


def _shared_memory_flops(gpu: Gpu, form: Form, clock: float) -> float:
    """For 16 dims by 16 keys a warp reads a quarter of its queries' fragments (four blocks share them), one
    of keys and one of values, and multiplies them with each of its row tiles."""
    row_tiles = Prefill(form).row_tiles
    fragment_bytes = 256 if form.cache == "e4m3" else 512
    num_bytes = row_tiles * 512 / 4 + 2 * fragment_bytes
    flops = row_tiles * 2 * (2 * 16 * 16 * 16)
    return gpu.multiprocessors * _SHARED_BYTES * clock * flops / num_bytes


def row_bytes(hidden: int, gated: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    """Bytes of a token that the kernels between matrix products read and write in bf16, by kernel."""
    qkv = (heads + 2 * kv_heads) * head_dim
    return {
        "split_qkv": 2 * 2 * qkv + 2 * 4 * head_dim,
        "add_rms_norm": 4 * 2 * hidden,
        "activate_and_multiply": 3 * 2 * gated,
        "gather_rows": 2 * 2 * hidden,
    }


def row_seconds(gpu: Gpu, num_bytes: int) -> float:
    return _LAUNCH_S + _UNIT_START_S + num_bytes / (gpu.peak_bytes * gpu.copy_share)


# Looks at the whole row: greedy at the largest and at the sum; sample at the largest, four rounds for each of
# top-k and top-p, the mass before top-p, the mass of each warp's share.
SAMPLING_PASSES = {"greedy": 2, "sample, unfiltered": 2, "sample, top-k and top-p": 11}


def sampling_seconds(gpu: Gpu, rows: int, vocab_size: int, passes: int) -> float:
    """A row is one block of threads; after the first pass it comes from L2."""
    clock = gpu.peak_flops / (gpu.multiprocessors * _TENSOR_FLOPS)
    rounds = -(-rows // gpu.multiprocessors)
    first = row_seconds(gpu, rows * vocab_size * 4)
    again = rounds * vocab_size * 4 * passes / (_L2_BYTES * clock)
    return first + again


def main() -> None:
    _print_occupancy()
    _print_decode()
    _print_prefill()
    _print_rows()
    _print_sampling()


def _print_occupancy() -> None:
    print("| head size, KV | registers | shared KiB | blocks / SM | limited by | KiB in flight / SM |")
    print("| --- | ---: | ---: | ---: | --- | ---: |")
    for head_dim in (64, 80, 96, 128, 256):
        for cache in ("bf16", "e4m3"):
            form = Form(head_dim, "bf16", cache)
            plan, fits = Decode(form), decode_occupancy(H200, form)
            registers = resources(plan.kernel, H200.arch).registers
            in_flight = bytes_in_flight(form, fits.blocks) / 1024
            print(
                f"| {head_dim}, {cache} | {registers} | {plan.shared_bytes / 1024:.1f} | {fits.blocks} "
                f"| {fits.limit} | {in_flight:.0f} |"
            )


def _print_decode() -> None:
    print("\n| shape | batch | context | KV MB | bound µs | predicted µs | of copy bandwidth |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for shape in (LLAMA_8B, LLAMA_8B_FP8, SMOLLM2):
        for batch, context in ((1, 1024), (1, 131072), (16, 4096), (64, 2048), (64, 8192), (256, 4096)):
            predicted, bound = decode_seconds(H200, shape, batch, context)
            megabytes = batch * context * shape.kv_bytes_per_token / 1e6
            print(
                f"| {shape.name} | {batch} | {context} | {megabytes:.1f} | {bound * 1e6:.1f} "
                f"| {predicted * 1e6:.1f} | {bound / predicted:.0%} |"
            )


def _print_prefill() -> None:
    print("\n| shape | tokens | GFLOP | predicted µs | TFLOP/s |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for shape in (LLAMA_8B, LLAMA_8B_FP8, SMOLLM2):
        for tokens in (2048, 8192, 32768):
            seconds, flops = prefill_seconds(H200, shape, tokens)
            print(
                f"| {shape.name} | {tokens} | {flops / 1e9:.1f} | {seconds * 1e6:.0f} "
                f"| {flops / seconds / 1e12:.0f} |"
            )


def _print_rows() -> None:
    print("\n| kernel, Llama 8B | tokens | MB | predicted µs |")
    print("| --- | ---: | ---: | ---: |")
    for name, token_bytes in row_bytes(4096, 14336, 32, 8, 128).items():
        for tokens in (64, 8192):
            num_bytes = tokens * token_bytes
            seconds = row_seconds(H200, num_bytes)
            print(f"| {name} | {tokens} | {num_bytes / 1e6:.1f} | {seconds * 1e6:.1f} |")


def _print_sampling() -> None:
    print("\n| kernel, 128256 tokens | rows | predicted µs |")
    print("| --- | ---: | ---: |")
    for name, passes in SAMPLING_PASSES.items():
        for rows in (1, 64):
            print(f"| {name} | {rows} | {sampling_seconds(H200, rows, 128256, passes) * 1e6:.0f} |")


if __name__ == "__main__":
    main()
