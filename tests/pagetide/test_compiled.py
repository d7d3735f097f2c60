"""The compiled stack against the one it stands for, which the tests of the model hold to transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_world import PagedRun, check_neighbours_change_no_bit, logits_of, random_tokens, relative_error
from tiny_checkpoints import VOCAB_SIZE, make_checkpoint

from pagetide import weights
from pagetide.compiled import CompiledStack
from pagetide.layers import AttentionBatch, Linear
from pagetide.model import Decoder, LayerByLayer
from pagetide_kernels import cpu, decoder, ops
from pagetide_kernels.binding import ArgumentError

CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

needs_vectors = pytest.mark.skipif(not decoder.is_fast(), reason="this CPU has no AVX2")

GEMMA = {"num_hidden_layers": 7, "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 20}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("Llama", {}),
    "every bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "gelu": ("Llama", {"hidden_act": "gelu"}),
    "relu": ("Llama", {"hidden_act": "relu"}),
    "wide heads, many queries a KV head": (
        "Llama",
        {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 80},
    ),
    "a rotated part of the head": (
        "Llama",
        {"head_dim": 32, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "windows in later layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "norms of queries and keys": ("Qwen3", {"head_dim": 32}),
    "sandwich norms and soft caps": ("Gemma2", GEMMA | {"attn_logit_softcapping": 5.0}),
    "two ropes": ("Gemma3", GEMMA),
}


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    loaded = weights.load(path, dtype=dtype, device=CPU)
    assert isinstance(loaded.stack, CompiledStack)
    return loaded


@needs_vectors
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["f32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_compiled_stack_gives_the_logits_of_the_layers(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    family, config = MODELS[name]
    compiled = load(make_checkpoint(tmp_path, family, **config), dtype)
    plain = replace(compiled, stack=LayerByLayer(compiled.body))
    tokens = random_tokens(300, VOCAB_SIZE)
    assert relative_error(logits_of(compiled, tokens), logits_of(plain, tokens)) < TOLERANCES[dtype]


@needs_vectors
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["f32", "bf16"])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_chunks_and_neighbours_change_no_bit(
    tiny_llama: Path, dtype: torch.dtype, num_threads: int
) -> None:
    check_neighbours_change_no_bit(load(tiny_llama, dtype), VOCAB_SIZE, num_threads)


@needs_vectors
@pytest.mark.parametrize("isa", cpu.supported_isas())
def test_every_instruction_set_gives_the_same_logits(tiny_llama: Path, isa: str) -> None:
    model, tokens = load(tiny_llama), random_tokens(90, VOCAB_SIZE)
    want = logits_of(replace(model, stack=LayerByLayer(model.body)), tokens)
    with cpu.use_isa(isa):
        assert relative_error(logits_of(model, tokens), want) < TOLERANCES[torch.float32]


@needs_vectors
def test_a_token_without_a_place_is_computed_and_not_stored(tiny_llama: Path) -> None:
    model, tokens = load(tiny_llama), random_tokens(20, VOCAB_SIZE)
    run = PagedRun(model, 1, len(tokens))
    run.step({0: tokens[:-1]})
    before = [cache.clone() for cache in run.kv_caches]
    hidden = torch.ones(1, model.config.hidden_size)
    batch = one_token_batch(run, slot=-1)
    model.stack(hidden, torch.arange(1), run.kv_caches, batch)
    for cache, was in zip(run.kv_caches, before, strict=True):
        torch.testing.assert_close(cache, was, rtol=0, atol=0, equal_nan=True)


@needs_vectors
@pytest.mark.parametrize("position", [0, 131_071, 10_000_000])
@pytest.mark.parametrize("name", ["plain", "a rotated part of the head", "two ropes"])
def test_tokens_far_out_are_turned_as_the_layers_turn_them(tmp_path: Path, name: str, position: int) -> None:
    family, config = MODELS[name]
    model = load(make_checkpoint(tmp_path, family, **config))
    hidden = torch.randn(1, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    stored = []
    for stack in (model.stack, LayerByLayer(model.body)):
        run = PagedRun(model, 1, 1)
        run.lens[0] = 1
        batch = one_token_batch(run, slot=16 * int(run.tables[0, 0]))
        stack(hidden.clone(), torch.tensor([position]), run.kv_caches, batch)
        stored.append(torch.stack(run.kv_caches).nan_to_num())
    torch.testing.assert_close(*stored, rtol=1e-4, atol=1e-5)


def one_token_batch(run: PagedRun, slot: int) -> AttentionBatch:
    return AttentionBatch(
        block_table=run.tables,
        query_starts=torch.tensor([0, 1], dtype=torch.int32),
        kv_lens=torch.tensor([run.lens[0]], dtype=torch.int32),
        slots=torch.tensor([slot]),
        max_query_len=1,
    )


@needs_vectors
def test_wrong_places_and_arguments_are_named(tiny_llama: Path) -> None:
    model = load(tiny_llama)
    run = PagedRun(model, 1, 20)
    run.step({0: random_tokens(20, VOCAB_SIZE)})
    hidden = torch.ones(1, model.config.hidden_size)
    good, num_blocks = one_token_batch(run, slot=0), len(run.kv_caches[0])

    def fails(
        message: str,
        batch: AttentionBatch = good,
        caches: list[torch.Tensor] = run.kv_caches,
        x: torch.Tensor = hidden,
    ) -> None:
        with pytest.raises(ArgumentError, match=message):
            model.stack(x, torch.arange(1), caches, batch)

    fails(r"decoder: slots\[0\] is \d+; expected less than", one_token_batch(run, slot=16 * num_blocks))
    outside = replace(good, block_table=torch.full_like(good.block_table, num_blocks))
    fails(r"decoder: block_table\[0\]\[0\] is \d+; expected a block id in \[0, \d+\)", outside)
    too_long = replace(good, kv_lens=torch.tensor([1000], dtype=torch.int32))
    fails(r"decoder: kv_lens\[0\] is 1000; expected 0 to", too_long)
    backwards = replace(good, query_starts=torch.tensor([1, 0], dtype=torch.int32))
    fails(r"decoder: query_starts\[0:2\] is 1, 0; expected to rise", backwards)
    for count in (0, 1):
        fails(rf"decoder: the number of kv_caches is {count}; expected 3", caches=run.kv_caches[:count])
    other = [*run.kv_caches[:2], run.kv_caches[2][:1]]
    fails(r"decoder: kv_caches\[2\] has shape, strides, dtype, device", caches=other)
    fails(r"decoder: hidden is of dtype torch.bfloat16; expected torch.float32", x=hidden.bfloat16())
    fails(r"decoder: hidden is of shape \[1, 32\]; expected \[1, 64\]", x=hidden[:, :32].contiguous())


@needs_vectors
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["f32", "bf16"])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_tokens_that_nobody_asks_for_leave_their_keys_and_values(
    tiny_llama: Path, dtype: torch.dtype, num_threads: int
) -> None:
    model, tokens = load(tiny_llama, dtype), random_tokens(300, VOCAB_SIZE)
    want = logits_of(model, tokens)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for rows in ([], [0], [3, 4, 200, 299], list(range(0, 300, 2)), list(range(300))):
            run = PagedRun(model, 1, len(tokens) + 1)
            got = run.step({0: tokens}, rows=rows)
            assert torch.equal(got, want[rows])
            assert torch.equal(run.step({0: [7]})[0], logits_of(model, [*tokens, 7])[-1])
    finally:
        torch.set_num_threads(before)


@needs_vectors
@pytest.mark.parametrize("rows", [[1, 1], [2, 1], [-1], [3]])
def test_wanted_tokens_that_do_not_rise_or_are_not_there_are_named(tiny_llama: Path, rows: list[int]) -> None:
    run = PagedRun(load(tiny_llama), 1, 3)
    with pytest.raises(
        ArgumentError, match=r"decoder: wanted\[\d\] is -?\d; expected more than -?\d and less"
    ):
        run.step({0: [1, 2, 3]}, rows=rows)


def test_a_part_that_does_not_fit_is_named() -> None:
    sizes = decoder.Sizes(64, 32, 4, 2, 16)
    weight = ops.pack_linear(torch.zeros(128, 64))
    wrong = decoder.Projection(ops.pack_linear(torch.zeros(64, 32)))
    layer = decoder.Layer(
        qkv=decoder.Projection(weight), out=wrong, gate_up=wrong, down=wrong, scale=1.0, activation="silu"
    )
    with pytest.raises(ArgumentError, match=r"decoder: layer 0 out is \[64, 32\]; expected \[64, 64\]"):
        decoder.DecoderStep([layer], [], None, sizes, torch.float32)
    with pytest.raises(ArgumentError, match=r"decoder: head_dim is 24; expected a multiple of 16"):
        decoder.DecoderStep([layer], [], None, replace(sizes, head_dim=24), torch.float32)


def test_foreign_linears_and_the_switch_keep_to_the_layers(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = weights.load(tiny_llama, device=CPU, make_linear=Linear)
    assert isinstance(foreign.stack, LayerByLayer)
    monkeypatch.setenv("PAGETIDE_CPU_STEP", "torch")
    assert isinstance(weights.load(tiny_llama, device=CPU).stack, LayerByLayer)
