"""GGUF files written from random checkpoints must load as the checkpoints do; broken ones are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from model_world import logits_of, random_tokens, relative_error
from safetensors.torch import load_file
from tiny_checkpoints import VOCAB_SIZE, make_checkpoint

from pagetide import weights
from pagetide.family import Family
from pagetide.gguf_reader import GgufFile
from pagetide.layers import Linear
from pagetide.rope import Rope, frequencies
from pagetide.weights import WeightsError

CPU = torch.device("cpu")
ARCHITECTURES = {
    "Llama": gguf.MODEL_ARCH.LLAMA,
    "Qwen2": gguf.MODEL_ARCH.QWEN2,
    "Qwen3": gguf.MODEL_ARCH.QWEN3,
    "Gemma2": gguf.MODEL_ARCH.GEMMA2,
    "Gemma3": gguf.MODEL_ARCH.GEMMA3,
}


def write_gguf(checkpoint: Path, architecture: gguf.MODEL_ARCH, kind: gguf.GGMLQuantizationType) -> Path:
    """Converts a directory as llama.cpp's converter does, with the names of the `gguf` package."""
    family = weights.open_checkpoint(checkpoint).family
    path = checkpoint / "model.gguf"
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    write_metadata(writer, family)
    names = gguf.get_tensor_name_map(architecture, family.num_layers)
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        values = stored_values(name, tensor.float().numpy(), architecture, family)
        write_tensor(writer, names.get_name(name, (".weight", ".bias")), values, kind)
    write_rope_scaling(writer, family.ropes[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_metadata(writer: gguf.GGUFWriter, family: Family) -> None:
    writer.add_block_count(family.num_layers)
    writer.add_context_length(family.max_model_len)
    writer.add_embedding_length(family.hidden_size)
    writer.add_feed_forward_length(family.intermediate_size)
    writer.add_head_count(family.num_heads)
    writer.add_head_count_kv(family.num_kv_heads)
    writer.add_key_length(family.head_dim)
    writer.add_layer_norm_rms_eps(family.norm_eps)
    writer.add_rope_freq_base(family.ropes[0].theta)
    writer.add_eos_token_id(2)
    if any(family.windows):
        writer.add_sliding_window(max(family.windows))
    if family.attention_soft_cap:
        writer.add_attn_logit_softcapping(family.attention_soft_cap)
    if family.logit_soft_cap:
        writer.add_final_logit_softcapping(family.logit_soft_cap)


def write_rope_scaling(writer: gguf.GGUFWriter, rope: Rope) -> None:
    if rope.scaling == "llama3":
        divisors = frequencies(Rope(rotary_dim=rope.rotary_dim, theta=rope.theta)) / frequencies(rope)
        writer.add_tensor("rope_freqs.weight", divisors.numpy())
    elif rope.scaling != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope.scaling))
        writer.add_rope_scaling_factor(rope.factor)
        writer.add_rope_scaling_orig_ctx_len(rope.trained_len)


def stored_values(name: str, values: np.ndarray, architecture: gguf.MODEL_ARCH, family: Family) -> np.ndarray:
    if architecture == gguf.MODEL_ARCH.LLAMA and (".q_proj." in name or ".k_proj." in name):
        pairs = values.reshape(-1, 2, family.head_dim // 2, *values.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
    return values + family.norm_offset if "norm" in name else values


def write_tensor(
    writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType
) -> None:
    kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
    writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), kind), raw_dtype=kind)


F32, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0
OPTIONS: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Qwen2": {},
    "Qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "Gemma2": {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 24},
    "Gemma3": {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 24, "num_hidden_layers": 7},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gguf_file_loads_as_the_checkpoint_it_came_from(tmp_path: Path, name: str) -> None:
    checkpoint = make_checkpoint(tmp_path, name, **OPTIONS[name])
    path = write_gguf(checkpoint, ARCHITECTURES[name], F32)
    tokens = random_tokens(60, VOCAB_SIZE)
    want = logits_of(weights.load(checkpoint, device=CPU), tokens)
    decoder = weights.load(path, device=CPU)
    assert decoder.dtype == torch.float32
    assert decoder.config.eos_token_ids == {2}
    assert relative_error(logits_of(decoder, tokens), want) < 1e-5


TRAINED = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {"rope_type": "yarn", **TRAINED},
    "llama3": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **TRAINED},
}


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_gguf_file_says_how_rope_is_stretched(tmp_path: Path, scaling: str) -> None:
    checkpoint = make_checkpoint(tmp_path, rope_parameters=SCALINGS[scaling])
    path = write_gguf(checkpoint, gguf.MODEL_ARCH.LLAMA, F32)
    tokens = random_tokens(200, VOCAB_SIZE)
    want = logits_of(weights.load(checkpoint, device=CPU), tokens)
    assert relative_error(logits_of(weights.load(path, device=CPU), tokens), want) < 1e-4


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("gguf"))
    return write_gguf(checkpoint, gguf.MODEL_ARCH.LLAMA, Q8_0)


def test_quantised_weights_become_bfloat16_near_the_originals(quantised: Path) -> None:
    tokens = random_tokens(60, VOCAB_SIZE)
    decoder = weights.load(quantised, device=CPU)
    want = logits_of(weights.load(quantised.parent, device=CPU), tokens)
    assert decoder.dtype == torch.bfloat16
    assert (logits_of(decoder, tokens) - want).norm() / want.norm() < 0.1


def test_shards_of_quantised_weights_concatenate_to_the_whole(quantised: Path) -> None:
    whole = weights.load(quantised, device=CPU, make_linear=Linear).body.layers[0]
    first, second = (
        weights.load(quantised, device=CPU, rank=rank, world=2, make_linear=Linear).body.layers[0]
        for rank in (0, 1)
    )
    queries = torch.cat([shard.attention.qkv.weight[:32] for shard in (first, second)])
    assert torch.equal(queries, whole.attention.qkv.weight[:64])
    down = torch.cat([shard.ffn.down.weight for shard in (first, second)], 1)
    assert torch.equal(down, whole.ffn.down.weight)


def test_a_directory_with_one_gguf_file_means_that_file(quantised: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(quantised.read_bytes())
    assert weights.load(tmp_path, device=CPU).content_id == weights.load(quantised, device=CPU).content_id
    (tmp_path / "other.gguf").write_bytes(quantised.read_bytes())
    with pytest.raises(WeightsError, match=r"not exactly one GGUF file \(found: model.gguf, other.gguf\)"):
        weights.load(tmp_path, device=CPU)


@pytest.mark.parametrize("keep", [0, 3, 10, 30, 200, 900, 5000])
def test_a_gguf_file_cut_anywhere_is_refused_naming_it(quantised: Path, tmp_path: Path, keep: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(quantised.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=r"cut\.gguf") as caught:
        weights.load(cut, device=CPU)
    assert "\n" not in str(caught.value)


def test_a_gguf_file_short_of_one_byte_names_the_tensor(quantised: Path, tmp_path: Path) -> None:
    last = max(GgufFile(quantised).tensors.values(), key=lambda tensor: tensor.offset)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(quantised.read_bytes()[: last.offset + last.num_bytes - 1])
    with pytest.raises(WeightsError, match=f"cut.gguf is truncated: tensor '{last.name}' lacks 1 bytes"):
        weights.load(cut, device=CPU)


def test_an_architecture_without_a_description_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=r"odd\.gguf has general.architecture 'mamba'; known: gemma2, "):
        weights.load(tmp_path / "odd.gguf", device=CPU)


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("this is no model")
    with pytest.raises(WeightsError, match=r"text\.gguf is not a GGUF file"):
        weights.load(tmp_path / "text.gguf", device=CPU)
