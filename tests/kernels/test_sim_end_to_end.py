"""A whole model over the simulated CUDA kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from model_world import greedy
from tiny_checkpoints import make_checkpoint

from pagetide import weights
from pagetide.model import LayerByLayer
from pagetide_kernels import ops

PROMPTS = [[7, 8, 9], list(range(20, 61)), [5], list(range(100, 240))]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory):
    path: Path = tmp_path_factory.mktemp("llama")
    make_checkpoint(path, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    return weights.load(path, dtype=torch.bfloat16, device=torch.device("cpu"))


def test_a_llama_generates_the_tokens_of_the_cpu_kernels(decoder):
    expected = greedy(decoder, PROMPTS, 12)
    by_kernel = replace(decoder, stack=LayerByLayer(decoder.layers))
    with ops.simulated_cuda():
        assert greedy(by_kernel, PROMPTS, 12) == expected
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)
