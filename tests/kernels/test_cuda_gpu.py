"""The CUDA kernels on a GPU: the same comparisons as simulated, CUDA graphs, and bad input.

Run with `pytest -m gpu`; skipped where there is no GPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip(
        "no GPU: the same kernels are tested in the simulator (test_sim_*.py)", allow_module_level=True
    )

from pagetide_kernels import ops
from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.cuda import ops_for
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


def on_gpu(case):
    moved = {name: value.to(DEVICE) for name, value in vars(case).items() if isinstance(value, torch.Tensor)}
    return replace(case, **moved)


@pytest.fixture
def make(make_case):
    return lambda sequences, **options: make_case(
        sequences, **{"dtype": torch.bfloat16, "heads": 8, "kv_heads": 2, **options}
    )


def assert_right(case, **options):
    moved = on_gpu(case)
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
    together = ops.paged_attention(**vars(on_gpu(case)))
    for i, (queries, _) in enumerate(RAGGED):
        if queries:
            alone = ops.paged_attention(**vars(on_gpu(case.only(i))))
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
    graph = _captured(lambda: device_ops.paged_attention(tensors, (cases[0].scale, 0, 0.0), 1))
    for case in cases:
        query.copy_(case.query)
        cache[: len(case.kv_cache)].copy_(case.kv_cache)
        table[:, : case.block_table.shape[1]].copy_(case.block_table)
        lens.copy_(case.kv_lens)
        out.fill_(torch.nan)
        graph.replay()
        torch.testing.assert_close(out.float().cpu(), case.expected(), rtol=0, atol=TOLERANCE)


def test_a_capture_of_what_was_never_run_is_refused(make):
    case = on_gpu(make([(1, 40)]))
    device_ops = DeviceOps(CudaLauncher(DEVICE))
    tensors = (torch.empty_like(case.query), *(getattr(case, name) for name in list(vars(case))[:5]))
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(CaptureError, match="first needed inside a CUDA graph capture"),
        torch.cuda.graph(graph),
    ):
        device_ops.paged_attention(tensors, (case.scale, 0, 0.0))


def test_launches_go_to_the_stream_that_is_current(make):
    """A slow kernel holds one stream; the result on another must not wait for it."""
    case = on_gpu(make([(1, 40)]))
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


def test_fp8_caches_are_right(make):
    case = make([(1, 700), (40, 300), (3, 90)])
    stored = case.kv_cache.float().to(torch.float8_e4m3fn)
    expected = replace(case, kv_cache=stored.float(), query=case.query.float()).expected()
    moved = on_gpu(replace(case, kv_cache=stored))
    out = torch.empty_like(moved.query)
    tensors = (out, *(getattr(moved, name) for name in list(vars(moved))[:5]))
    ops_for(DEVICE).paged_attention(tensors, (case.scale, 0, 0.0))
    torch.testing.assert_close(out.float().cpu(), expected, rtol=0.004, atol=TOLERANCE)


def test_sampling_on_a_large_vocabulary_draws_the_right_token():
    logits = torch.randn(8, 128256, generator=torch.Generator().manual_seed(1)) * 3
    uniform = torch.linspace(0.05, 0.95, 8)
    probs = logits.double().softmax(-1)
    expected = torch.searchsorted(probs.cumsum(-1), uniform[:, None].double(), right=True)[:, 0]
    tokens = torch.empty(8, dtype=torch.int64, device=DEVICE)
    ones, no_k = torch.ones(8, device=DEVICE), torch.zeros(8, dtype=torch.int32, device=DEVICE)
    tensors = (tokens, logits.to(DEVICE), ones, no_k, ones, torch.zeros_like(ones), uniform.to(DEVICE))
    ops_for(DEVICE).sample(tensors)
    assert (tokens.cpu() - expected).abs().max() <= 1


def test_wrong_arguments_are_named(make):
    case = on_gpu(make([(1, 1)]))
    with pytest.raises(ArgumentError, match="kv_lens is on device cpu"):
        ops.paged_attention(**{**vars(case), "kv_lens": case.kv_lens.cpu()})
    with pytest.raises(ArgumentError, match="head size 48"):
        ops.paged_attention(**vars(on_gpu(make([(1, 1)], head_size=48))))
