"""Whole models over the simulated CUDA kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from model_world import greedy, logits_of, random_tokens
from tiny_checkpoints import VOCAB_SIZE, make_checkpoint

from pagetide import weights
from pagetide.layers import Linear
from pagetide_kernels import ops

CPU = torch.device("cpu")
PROMPTS = [[7, 8, 9], list(range(20, 61)), [5], list(range(100, 240))]
SHAPE = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
# Between them they take every kernel that a step has, with and without its options.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"seed": 5}),  # of other weights some tokens tie
    "norms of queries and keys": ("Qwen3", {"head_dim": 64, "seed": 2}),
    "norms around sublayers, windows, caps, tanh gelu, scaled embeddings": (
        "Gemma2",
        {"head_dim": 64, "sliding_window": 24, "attn_logit_softcapping": 5.0},
    ),
    "part of a head turned, another activation": (
        "Llama",
        {
            "hidden_act": "relu",
            "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
            "seed": 1,
        },
    ),
}


def checkpoint(folder: Path, name: str) -> Path:
    family, config = MODELS[name]
    return make_checkpoint(folder, family, **(SHAPE | config))


def load_for_cuda(path: Path, kv_dtype: torch.dtype | None = None) -> Any:
    """As `device: sim` loads it: no part of the model is the CPU's own."""
    return weights.load(path, dtype=torch.bfloat16, kv_dtype=kv_dtype, device=CPU, make_linear=Linear)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_generates_the_tokens_of_the_cpu_kernels(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path, name)
    expected = greedy(weights.load(path, dtype=torch.bfloat16, device=CPU), PROMPTS, 12)
    with ops.simulated_cuda():
        assert greedy(load_for_cuda(path), PROMPTS, 12) == expected
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)


def test_an_e4m3_cache_changes_the_logits_by_its_rounding_only(tmp_path: Path) -> None:
    path, tokens = checkpoint(tmp_path, "llama"), random_tokens(90, VOCAB_SIZE)
    with ops.simulated_cuda():
        wide, narrow = load_for_cuda(path), load_for_cuda(path, torch.float8_e4m3fn)
        exact, rounded = logits_of(wide, tokens), logits_of(narrow, tokens)
    assert 0.02 < (rounded - exact).norm() / exact.norm() < 0.15
    assert wide.content_id != narrow.content_id
