"""The decoder against transformers: same checkpoint, same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_world import PagedRun, logits_of, random_tokens, relative_error
from tiny_checkpoints import VOCAB_SIZE, make_checkpoint

from pagetide import weights
from pagetide.layers import FIXED_ROWS, FixedLinear, Head, Linear, PackedLinear, QuantisedLinear, linear_for
from pagetide.model import Decoder
from pagetide_kernels import ops

CPU = torch.device("cpu")
TOLERANCE = 1e-4


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return weights.load(path, dtype=dtype, device=CPU)


def reference_logits(path: Path, tokens: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def assert_like_transformers(path: Path, num_tokens: int = 70) -> None:
    tokens = random_tokens(num_tokens, VOCAB_SIZE)
    error = relative_error(logits_of(load(path), tokens), reference_logits(path, tokens))
    assert error < TOLERANCE


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(4, 4, 16), (9, 3, 32), (8, 1, 64), (6, 2, 80), (16, 4, 128), (5, 5, 16)],
)
def test_every_head_count_and_size_gives_transformers_logits(
    tmp_path: Path, heads: int, kv_heads: int, head_dim: int
) -> None:
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    assert_like_transformers(make_checkpoint(tmp_path, hidden_size=heads * 16, **shape))


OPTIONS: dict[str, dict[str, Any]] = {
    "tied head": {"tie_word_embeddings": True},
    "attention biases": {"attention_bias": True},
    "feed-forward biases": {"mlp_bias": True},
    "gelu": {"hidden_act": "gelu"},
    "tanh gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "another norm epsilon": {"rms_norm_eps": 1e-2},
    "one layer": {"num_hidden_layers": 1},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_llama_option_gives_transformers_logits(tmp_path: Path, option: str) -> None:
    assert_like_transformers(make_checkpoint(tmp_path, **OPTIONS[option]))


TRAINED = {"original_max_position_embeddings": 64}
ROPES: dict[str, dict[str, Any]] = {
    "another base": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **TRAINED,
    },
    "yarn": {"rope_type": "yarn", "factor": 8.0, **TRAINED},
    "yarn with its own amplitude": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.3, **TRAINED},
    "yarn with mscale": {"rope_type": "yarn", "factor": 8.0, "mscale": 0.9, "mscale_all_dim": 0.6, **TRAINED},
    "yarn with other betas": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        **TRAINED,
    },
}


@pytest.mark.parametrize("rope", ROPES)
def test_every_rope_scaling_gives_transformers_logits(tmp_path: Path, rope: str) -> None:
    parameters = {"rope_theta": 10000.0} | ROPES[rope]
    assert_like_transformers(make_checkpoint(tmp_path, rope_parameters=parameters), num_tokens=300)


def test_longrope_takes_its_long_factors_as_transformers_does_beyond_the_trained_length(
    tmp_path: Path,
) -> None:
    pairs = [1.0 + 0.3 * i for i in range(8)]
    parameters = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0, **TRAINED}
    factors = {"short_factor": pairs, "long_factor": [2.0 * f for f in pairs]}
    assert_like_transformers(make_checkpoint(tmp_path, rope_parameters=parameters | factors), num_tokens=300)


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Mistral": ("Mistral", {"sliding_window": None}),
    "Mistral with a window": ("Mistral", {"sliding_window": 24}),
    "Qwen2": ("Qwen2", {}),
    "Qwen2 with windows in later layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "Qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_transformers_logits(tmp_path: Path, name: str) -> None:
    family, config = FAMILIES[name]
    assert_like_transformers(make_checkpoint(tmp_path, family, **config))


GEMMA: dict[str, Any] = {
    "num_hidden_layers": 7,
    "head_dim": 32,
    "sliding_window": 24,
    "query_pre_attn_scalar": 20,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("caps", [{}, {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}])
def test_gemma2_gives_transformers_logits(tmp_path: Path, caps: dict[str, float]) -> None:
    assert_like_transformers(make_checkpoint(tmp_path, "Gemma2", **GEMMA, **caps))


@pytest.mark.parametrize("caps", [{}, {"final_logit_softcapping": 3.0}])
def test_gemma3_gives_transformers_logits(tmp_path: Path, caps: dict[str, float]) -> None:
    assert_like_transformers(make_checkpoint(tmp_path, "Gemma3", **GEMMA, **caps))


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_a_prompt_in_chunks_gives_the_logits_of_one_step(tiny_llama: Path, chunk: int) -> None:
    decoder, tokens = load(tiny_llama), random_tokens(90, VOCAB_SIZE)
    run = PagedRun(decoder, 1, len(tokens))
    parts = [run.step({0: tokens[i : i + chunk]}, every_row=True) for i in range(0, len(tokens), chunk)]
    assert relative_error(torch.cat(parts), logits_of(decoder, tokens)) < 1e-5


def test_sequences_in_one_step_do_not_change_each_other(tiny_llama: Path) -> None:
    decoder = load(tiny_llama)
    prompts = {i: random_tokens(length, VOCAB_SIZE, seed=i) for i, length in enumerate((1, 40, 17, 64))}
    run = PagedRun(decoder, len(prompts), 80)
    run.step({1: prompts[1][:-1], 3: prompts[3][:30]})
    got = run.step({0: prompts[0], 1: prompts[1][-1:], 2: prompts[2], 3: prompts[3][30:]})
    want = torch.stack([logits_of(decoder, prompts[i])[-1] for i in range(4)])
    assert relative_error(got, want) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("biases", [False, True])
def test_packed_linears_give_the_plain_ones_results(dtype: torch.dtype, biases: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (
        torch.randn(*shape, generator=generator, dtype=dtype) for shape in ((40, 64), (40,), (7, 64))
    )
    bias = bias if biases else None
    torch.testing.assert_close(PackedLinear(weight, bias)(x), Linear(weight, bias)(x))
    assert PackedLinear(weight, bias)(x[:0]).shape == (0, 40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fixed_linears_give_the_plain_ones_results_and_a_row_the_same_bits_in_any_batch(
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (
        torch.randn(*shape, generator=generator, dtype=dtype)
        for shape in ((96, 1536), (96,), (2 * FIXED_ROWS + 3, 1536))
    )
    fixed = FixedLinear(weight, bias)
    whole = fixed(x)
    torch.testing.assert_close(whole, Linear(weight, bias)(x))
    for count in (1, 2, 7, 8, 31, FIXED_ROWS, FIXED_ROWS + 1):
        for start in range(0, len(x) - count + 1, 5):
            assert torch.equal(fixed(x[start : start + count]), whole[start : start + count])
    assert fixed(x[:0]).shape == (0, 96)


@pytest.mark.skipif(linear_for(CPU, torch.bfloat16) is Linear, reason="this CPU has no bfloat16 dot product")
def test_bfloat16_logits_are_bit_equal_in_any_batch_and_chunking(tiny_llama: Path) -> None:
    decoder = load(tiny_llama, torch.bfloat16)
    prompts = {i: random_tokens(length, VOCAB_SIZE, seed=i) for i, length in enumerate((1, 40, 17, 64))}
    run = PagedRun(decoder, len(prompts), 80)
    run.step({1: prompts[1][:-1], 3: prompts[3][:30]})
    got = run.step({0: prompts[0], 1: prompts[1][-1:], 2: prompts[2], 3: prompts[3][30:]})
    want = torch.stack([logits_of(decoder, prompts[i])[-1] for i in range(4)])
    assert torch.equal(got, want)


def test_only_the_asked_rows_are_scored(tiny_llama: Path) -> None:
    decoder, tokens = load(tiny_llama), random_tokens(20, VOCAB_SIZE)
    assert PagedRun(decoder, 1, 20).step({0: tokens}).shape == (1, VOCAB_SIZE)


def test_bfloat16_stays_near_float32(tiny_llama: Path) -> None:
    tokens = random_tokens(90, VOCAB_SIZE)
    got = logits_of(load(tiny_llama, torch.bfloat16), tokens)
    want = logits_of(load(tiny_llama), tokens)
    assert got.dtype == torch.float32
    assert (got - want).norm() / want.norm() < 0.03


@pytest.mark.parametrize("soft_cap", [0.0, 2.0])
@pytest.mark.parametrize("kind", ["plain", "packed", "with a bias", "quantised"])
def test_a_heads_likeliest_tokens_are_those_of_its_logits(kind: str, soft_cap: float) -> None:
    generator = torch.Generator().manual_seed(0)
    states, weight = (torch.randn(rows, 64, generator=generator).bfloat16() for rows in (50, 300))
    linear = {
        "plain": lambda: Linear(weight, None),
        "packed": lambda: PackedLinear(weight),
        "with a bias": lambda: PackedLinear(weight, 4 * weight[:, 0]),
        "quantised": lambda: QuantisedLinear(ops.quantise(weight.float(), 8), None, torch.bfloat16),
    }[kind]()
    head = Head(linear, soft_cap)
    assert torch.equal(head.likeliest(states), ops.likeliest(head(states)))
