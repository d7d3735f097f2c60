"""Descriptions read from configuration files: old and new spellings, defaults, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pagetide.checkpoint import WeightsError
from pagetide.family import ARCHITECTURES, Family, read_family
from pagetide.layers import Rotary
from pagetide.rope import Rope, frequencies
from pagetide_kernels.cpu.plain import rotate

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}


def read(generation: dict[str, Any] | None = None, **changes: Any) -> Family:
    return read_family(CONFIG | changes, generation or {}, "config.json")


def test_what_a_llama_config_leaves_out_is_transformers_default() -> None:
    family = read()
    assert (family.num_kv_heads, family.head_dim, family.attention_scale) == (4, 16, 0.25)
    assert (family.norm_eps, family.activation, family.tied_head) == (1e-6, "silu", False)
    assert family.ropes == (Rope(rotary_dim=16, theta=10000.0, trained_len=256),)
    assert family.eos_token_ids == frozenset()


def test_eos_ids_come_from_both_files() -> None:
    assert read({"eos_token_id": [7, 9]}, eos_token_id=2).eos_token_ids == {2, 7, 9}


SCALED = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_rope_reads_the_same_from_old_and_new_keys() -> None:
    new = read(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **SCALED})
    old = read(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **SCALED})
    oldest = read(rope_theta=5e5, rope_scaling={"type": "llama3", **SCALED})
    assert new.ropes == old.ropes == oldest.ropes
    assert new.ropes[0].theta == 5e5


def test_yarn_lengthens_a_model_whose_config_counts_trained_positions_only() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert read(rope_scaling=yarn).max_model_len == 1024
    assert read(rope_scaling=yarn, max_position_embeddings=2048).max_model_len == 2048


def test_quantised_safetensors_are_refused_before_they_are_misread() -> None:
    with pytest.raises(WeightsError, match=r"config\.json says the weights are quantised by fp8"):
        read(quantization_config={"quant_method": "fp8"})


def test_gemma3_ropes_read_the_same_from_old_and_new_keys() -> None:
    gemma = {"architectures": ["Gemma3ForCausalLM"], "head_dim": 32}
    old = read(
        **gemma, rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0}
    )
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    local = {"rope_type": "default", "rope_theta": 1e4}
    new = read(**gemma, rope_parameters={"full_attention": full, "sliding_attention": local})
    assert new.ropes == old.ropes
    assert [rope.theta for rope in new.ropes] == [1e6, 1e4]


def test_mistral_has_a_window_unless_its_config_says_null() -> None:
    mistral = {"architectures": ["MistralForCausalLM"]}
    assert read(**mistral).windows == (4096,) * 4
    assert read(**mistral, sliding_window=None).windows == (0,) * 4


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        WeightsError, match=r"config\.json has architectures \['BertModel'\]; known: .*LlamaFor"
    ):
        read(architectures=["BertModel"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "mish"}, "activation 'mish' is unknown; known: gelu"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "RoPE scaling 'spiral' is unknown; known: default"),
    ],
)
def test_a_value_no_layer_implements_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        read(**changes)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"])
def test_a_missing_key_is_named(key: str) -> None:
    config = {name: value for name, value in CONFIG.items() if name != key}
    with pytest.raises(WeightsError, match=f"config.json lacks '{key}', which LlamaForCausalLM needs"):
        read_family(config, {}, "config.json")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_description_names_a_rope_and_a_window_for_every_layer(architecture: str) -> None:
    family = read(architectures=[architecture])
    assert len(family.windows) == len(family.layer_ropes) == family.num_layers
    assert set(family.layer_ropes) <= set(range(len(family.ropes)))


def test_a_shard_divides_heads_and_columns_and_repeats_scarce_kv_heads() -> None:
    family = read(num_key_value_heads=2)
    assert (family.shard(2).num_heads, family.shard(2).num_kv_heads, family.shard(2).intermediate_size) == (
        2,
        1,
        48,
    )
    assert family.shard(4).num_kv_heads == 1
    with pytest.raises(WeightsError, match="num_heads 4 does not divide by 3 ranks"):
        family.shard(3)


def test_dimensions_beyond_the_rotary_ones_are_left_alone() -> None:
    heads = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(0))
    rotation = Rotary(Rope(rotary_dim=8), torch.device("cpu"))(torch.arange(5))
    small = rotate(heads[..., :8].clone(), rotation.cos, rotation.sin)
    whole = rotate(heads.clone(), rotation.cos, rotation.sin)
    assert torch.equal(whole[..., 8:], heads[..., 8:])
    assert torch.equal(whole[..., :8], small)


def test_rotation_keeps_products_a_function_of_distance() -> None:
    query, key = torch.randn(2, 1, 1, 32, generator=torch.Generator().manual_seed(1))
    rotary = Rotary(Rope(rotary_dim=32), torch.device("cpu"))

    def at(heads: torch.Tensor, position: int) -> torch.Tensor:
        turn = rotary(torch.tensor([position]))
        return rotate(heads.clone(), turn.cos, turn.sin)

    products = [float((at(query, 40 + shift) * at(key, shift)).sum()) for shift in (0, 1, 100, 3000)]
    assert max(products) - min(products) < 1e-3


def test_longrope_takes_short_factors_when_the_model_is_not_stretched() -> None:
    scaling = {"rope_type": "longrope", "short_factor": [2.0] * 8, "long_factor": [4.0] * 8}
    short = read(rope_scaling=scaling | {"original_max_position_embeddings": 256})
    long = read(rope_scaling=scaling | {"original_max_position_embeddings": 64})
    plain = frequencies(Rope(rotary_dim=16))
    torch.testing.assert_close(frequencies(short.ropes[0]), plain / 2)
    torch.testing.assert_close(frequencies(long.ropes[0]), plain / 4)
