"""The CUDA kernels on a GPU: the same comparisons as simulated, CUDA graphs, and bad input.

Run with `pytest -m gpu`; skipped where there is no GPU.
"""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip(
        "no GPU: the same kernels are tested in the simulator (test_sim_*.py)", allow_module_level=True
    )

from tiny_checkpoints import make_checkpoint

from pagetide import weights
from pagetide.layers import AttentionBatch
from pagetide_kernels import ops
from pagetide_kernels.cuda_launch import CaptureError, CudaLauncher
from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.device_signatures import HEAD_DIMS

pytestmark = pytest.mark.gpu

TOLERANCE = 0.008
DEVICE = torch.device("cuda", 0)
RAGGED = [
    (1, 700),
    (1, 17),
    (5, 5),
    (0, 0),
    (40, 300),
    (0, 33),
    (17, 600),
    (16, 90),
    (1, 0),
    (1, 1),
    (300, 3000),
]


@pytest.fixture
def make(make_case):
    return lambda sequences, **options: make_case(
        sequences, **{"dtype": torch.bfloat16, "heads": 8, "kv_heads": 2, **options}
    )


def assert_right(case, **options):
    moved = case.to(DEVICE)
    out = ops.paged_attention(**vars(moved), out=torch.full_like(moved.query, torch.nan), **options)
    torch.testing.assert_close(out.float().cpu(), case.expected(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_every_head_size_is_right(make, head_dim, dtype):
    assert_right(make(RAGGED, head_size=head_dim, dtype=dtype))


@pytest.mark.parametrize("group", range(1, 17))
def test_every_group_size_is_right(make, group):
    assert_right(make(RAGGED, heads=2 * group))


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_every_kv_length_around_a_block_is_right(make, queries):
    assert_right(make([(queries, kv_len) for kv_len in range(queries, 131)]))


@pytest.mark.parametrize(("window", "soft_cap"), [(1, 0.0), (17, 0.0), (250, 3.0), (0, 50.0)])
def test_windows_and_soft_caps_are_right(make, window, soft_cap):
    assert_right(make(RAGGED, window=window, soft_cap=soft_cap))


@pytest.mark.parametrize("batch", [1, 64, 256])
def test_long_ragged_batches_are_right(make, batch):
    lens = [(1, 1 + 977 * i % 4096) for i in range(batch)]
    assert_right(make(lens, heads=4, kv_heads=1))


def test_a_result_depends_on_its_own_sequence_only(make):
    case = make(RAGGED)
    together = ops.paged_attention(**vars(case.to(DEVICE)))
    for i, (queries, _) in enumerate(RAGGED):
        if queries:
            alone = ops.paged_attention(**vars(case.only(i).to(DEVICE)))
            assert torch.equal(alone, together[case.rows(i)])


def _captured(run):
    """A graph of `run`, which is called once before, as a capture needs."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def test_a_captured_graph_is_replayed_with_other_lengths_and_tables(make):
    shapes = [[(1, 700), (1, 17), (1, 33)], [(1, 16), (1, 1000), (1, 1)], [(1, 5), (1, 512), (1, 513)]]
    cases = [make(lens, seed=i) for i, lens in enumerate(shapes)]
    num_blocks, width = max(len(c.kv_cache) for c in cases), max(c.block_table.shape[1] for c in cases)
    query, out = cases[0].query.to(DEVICE), torch.empty_like(cases[0].query, device=DEVICE)
    cache = torch.zeros(num_blocks, *cases[0].kv_cache.shape[1:], dtype=torch.bfloat16, device=DEVICE)
    table = torch.zeros(3, width, dtype=torch.int32, device=DEVICE)
    starts, lens = cases[0].query_starts.to(DEVICE), torch.ones(3, dtype=torch.int32, device=DEVICE)
    device_ops = DeviceOps(CudaLauncher(DEVICE))
    tensors = (out, query, cache, table, starts, lens)
    graph = _captured(lambda: device_ops.paged_attention(tensors, (cases[0].scale, 0, 0.0, 1.0, 1.0), 1))
    for case in cases:
        query.copy_(case.query)
        cache[: len(case.kv_cache)].copy_(case.kv_cache)
        table[:, : case.block_table.shape[1]].copy_(case.block_table)
        lens.copy_(case.kv_lens)
        out.fill_(torch.nan)
        graph.replay()
        torch.testing.assert_close(out.float().cpu(), case.expected(), rtol=0, atol=TOLERANCE)


def test_a_capture_of_what_was_never_run_is_refused(make):
    case = make([(1, 40)]).to(DEVICE)
    device_ops = DeviceOps(CudaLauncher(DEVICE))
    tensors = (torch.empty_like(case.query), *(getattr(case, name) for name in list(vars(case))[:5]))
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(CaptureError, match="first needed inside a CUDA graph capture"),
        torch.cuda.graph(graph),
    ):
        device_ops.paged_attention(tensors, (case.scale, 0, 0.0, 1.0, 1.0))


def test_launches_go_to_the_stream_that_is_current(make):
    """A slow kernel holds one stream; the result on another must not wait for it."""
    case = make([(1, 40)]).to(DEVICE)
    ops.paged_attention(**vars(case))
    busy, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(2_000_000_000)
        held = torch.cuda.Event()
        held.record()
    with torch.cuda.stream(other):
        ops.paged_attention(**vars(case))
    other.synchronize()
    assert not held.query()


def rotation(num_tokens):
    return torch.ones(num_tokens, 1, 64, device=DEVICE), torch.zeros(num_tokens, 1, 64, device=DEVICE)


def every_op(ids, lens, slots, logits):
    """One small step through every op but attention's prefill; `ids`, `lens` and `slots` [2] may change."""
    generator = torch.Generator(DEVICE).manual_seed(3)
    table = torch.randn(50, 512, generator=generator, device=DEVICE).bfloat16()
    weight, cache = torch.ones(512, device=DEVICE), torch.zeros(9, 2, 2, 16, 64, device=DEVICE).bfloat16()
    blocks = torch.arange(8, dtype=torch.int32, device=DEVICE).view(2, 4)
    starts = torch.arange(3, dtype=torch.int32, device=DEVICE)
    some, block = torch.full((2,), 0.7, device=DEVICE), torch.tensor([0], device=DEVICE)
    rows, seen = torch.arange(2, device=DEVICE), torch.arange(2, dtype=torch.int32, device=DEVICE)
    mask = torch.full((2, 32), -2, dtype=torch.int32, device=DEVICE)
    cos, sin = rotation(2)

    def run():
        hidden = ops.gather_rows(table, ids)
        normed = ops.add_rms_norm(hidden, None, weight, 1e-5)
        query = ops.split_qkv(normed.view(2, 8, 64), cos, sin, cache, slots)
        attended = ops.paged_attention(query, cache, blocks, starts, lens, 0.125, max_query_len=1)
        gated = ops.activate_and_multiply(attended.view(2, 2, 128), "silu")
        ops.move_blocks(cache, cache, block + 8, block)
        edited = logits.clone()
        ops.penalise(edited, rows, starts.long(), seen, seen, some, some, some)
        ops.apply_bitmask(edited, rows, mask)
        tokens, logprobs = ops.greedy(edited, 4)
        drawn = ops.sample(edited, some, seen, some, some, some.double())
        return hidden, gated, tokens, logprobs, drawn, cache[8].clone()

    return run


def test_every_op_is_captured_and_replayed_with_other_inputs():
    ids, lens = torch.tensor([1, 2], device=DEVICE), torch.tensor([1, 1], dtype=torch.int32, device=DEVICE)
    slots, logits = torch.tensor([0, 64], device=DEVICE), torch.randn(2, 1003, device=DEVICE)
    run = every_op(ids, lens, slots, logits)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()
    for position in (1, 20):
        ids.add_(7)
        lens.fill_(position + 1)
        slots.copy_(torch.tensor([position, 64 + position]))
        logits.copy_(torch.randn(2, 1003))
        graph.replay()
        replayed = [output.clone() for output in outputs]
        for ours, theirs in zip(replayed, run(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_no_launch_waits_or_claims_memory():
    ids, lens = torch.tensor([1, 2], device=DEVICE), torch.tensor([1, 1], dtype=torch.int32, device=DEVICE)
    run = every_op(ids, lens, torch.tensor([0, 64], device=DEVICE), torch.randn(2, 1003, device=DEVICE))
    run()
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_reserved() == reserved


def test_a_whole_forward_is_captured_and_replayed(tmp_path):
    pytest.importorskip("transformers")
    path = make_checkpoint(tmp_path, hidden_size=256, num_attention_heads=4, num_key_value_heads=2)
    decoder = weights.load(path, dtype=torch.bfloat16, device=DEVICE)
    caches = [torch.zeros(4, 2, 2, 16, 64, device=DEVICE).bfloat16() for _ in decoder.body.layers]
    ids, positions = (torch.zeros(1, dtype=torch.int64, device=DEVICE) for _ in range(2))
    slots, rows = torch.zeros_like(ids), torch.zeros_like(ids)
    starts, lens = (torch.tensor(v, dtype=torch.int32, device=DEVICE) for v in ([0, 1], [1]))
    table = torch.arange(4, dtype=torch.int32, device=DEVICE)[None]
    batch = AttentionBatch(table, starts, lens, slots, max_query_len=1)
    decoder.forward(ids, positions, caches, batch, rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = decoder.forward(ids, positions, caches, batch, rows)
    for position in range(40):
        ids.fill_(3 * position + 1)
        positions.fill_(position)
        slots.fill_(position)
        lens.fill_(position + 1)
        graph.replay()
        replayed = logits.clone()
        expected = decoder.forward(ids, positions, caches, batch, rows)
        torch.testing.assert_close(replayed, expected, rtol=0, atol=0)
