"""The default model against transformers, both reading the same quantised GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_world import PagedRun, greedy, logits_of, relative_error

from pagetide import tokenizer, weights
from pagetide.layers import Linear, linear_for
from pagetide.model import Decoder

pytestmark = pytest.mark.timeout(900)

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The three primary colours are",
    "Photosynthesis is the process by which",
    "In 1969, the first humans",
    "Q: What is 12 times 12?\nA:",
    "My favourite recipe starts with two eggs and",
    "The difference between a virus and a bacterium is that",
    "Dear Sir or Madam,\n\nI am writing to",
    "import numpy as np\n\n",
    "Les enfants jouent dans",
    "SELECT name FROM users WHERE",
    "A haiku about winter:\n",
    "The Pythagorean theorem states",
    "To be, or not to be,",
    "| Planet | Moons |\n|---|---|\n| Mars |",
    "Gravity",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "1, 1, 2, 3, 5, 8,",
    "The train left the station at noon. " * 12 + "Then",
)


@pytest.fixture(scope="module")
def decoder(smollm2_path: Path) -> Decoder:
    return weights.load(smollm2_path, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> list[list[int]]:
    encode = tokenizer.load(smollm2_path).encode
    return [encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Any:
    """transformers' model with the tensors that transformers reads; its one-call way needs accelerate too."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(smollm2_path), return_tensors=True, model_to_load=model)["tensors"]
    assert model.load_state_dict(tensors, strict=False).missing_keys == ["lm_head.weight"]
    model.tie_weights()
    return model


@pytest.mark.slow
def test_logits_are_transformers_logits(decoder: Decoder, reference: Any, prompts: list[list[int]]) -> None:
    tokens = [token for prompt in prompts for token in prompt]
    with torch.inference_mode():
        want = reference(torch.tensor([tokens])).logits[0]
    assert relative_error(logits_of(decoder, tokens), want) < 1e-4


@pytest.mark.slow
def test_greedy_tokens_are_transformers_tokens(
    decoder: Decoder, reference: Any, prompts: list[list[int]]
) -> None:
    """Each token must be transformers' choice after the tokens before it, so all are its greedy output."""
    assert len(prompts) >= 20
    for prompt, output in zip(prompts, greedy(decoder, prompts, 64), strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + output]), logits_to_keep=len(output) + 1).logits[0, :-1]
        assert output == logits.argmax(-1).tolist()


def test_an_unset_dtype_is_bfloat16_and_answers_as_float32_does(smollm2_path: Path) -> None:
    text = tokenizer.load(smollm2_path)
    decoder = weights.load(smollm2_path, device=torch.device("cpu"))
    assert decoder.dtype == torch.bfloat16
    [answer] = greedy(decoder, [text.encode("The capital of France is")], 4)
    assert text.decode(answer).startswith(" Paris")


@pytest.mark.skipif(
    linear_for(torch.device("cpu"), torch.bfloat16) is Linear, reason="this CPU has no bfloat16 dot product"
)
def test_bfloat16_logits_are_bit_equal_alone_and_in_a_batch(
    smollm2_path: Path, prompts: list[list[int]]
) -> None:
    decoder = weights.load(smollm2_path, device=torch.device("cpu"))
    batch = PagedRun(decoder, len(prompts), max(map(len, prompts))).step(dict(enumerate(prompts)))
    alone = torch.stack([logits_of(decoder, prompt)[-1] for prompt in prompts])
    assert torch.equal(batch, alone)
