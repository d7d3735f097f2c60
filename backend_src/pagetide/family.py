"""What a decoder is made of, as data: read from `config.json`, interpreted by `pagetide.model`.

Adding a family is adding a row to `ARCHITECTURES` and a test against transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagetide.checkpoint import WeightsError
from pagetide.rope import Rope, read_rope

Config = Mapping[str, Any]

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True, slots=True)
class NormNames:
    """Which norms a layer has, by the names Hugging Face checkpoints give them; None: no norm there.

    `*_in` stands before a sublayer, `*_out` after it and before the residual is added.
    """

    attn_in: str | None = "input_layernorm"
    attn_out: str | None = None
    ffn_in: str | None = "post_attention_layernorm"
    ffn_out: str | None = None


PRE_NORM = NormNames()
SANDWICH_NORM = NormNames(
    attn_out="post_attention_layernorm",
    ffn_in="pre_feedforward_layernorm",
    ffn_out="post_feedforward_layernorm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One decoder, described.

    `windows[i]` is how many tokens layer i attends to, itself included (0: all before it);
    `ropes[layer_ropes[i]]` is its rotary embedding. `norm_offset` is added to every norm weight.
    A soft cap of 0 is none. With `shard`, the head counts and `intermediate_size` are one rank's.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    norm_eps: float
    activation: str
    tied_head: bool
    attention_scale: float
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]
    windows: tuple[int, ...]
    norms: NormNames = PRE_NORM
    norm_offset: float = 0.0
    qk_norm: bool = False
    qkv_bias: bool = False
    attn_out_bias: bool = False
    mlp_bias: bool = False
    embedding_scale: float = 1.0
    attention_soft_cap: float = 0.0
    logit_soft_cap: float = 0.0

    def shard(self, world: int) -> Family:
        """One rank's share of the heads and of the feed-forward columns.

        Raises WeightsError when they do not divide by `world`. KV heads fewer than ranks are repeated.
        """
        for name in ("num_heads", "intermediate_size"):
            if getattr(self, name) % world:
                raise WeightsError(f"{name} {getattr(self, name)} does not divide by {world} ranks")
        if self.num_kv_heads % world and world % self.num_kv_heads:
            raise WeightsError(f"num_kv_heads {self.num_kv_heads} and {world} ranks do not divide")
        return replace(
            self,
            num_heads=self.num_heads // world,
            num_kv_heads=max(1, self.num_kv_heads // world),
            intermediate_size=self.intermediate_size // world,
        )


def read_family(config: Config, generation: Config, source: str) -> Family:
    """The description of the model that `config` (a parsed `config.json`) configures.

    `generation` is the parsed `generation_config.json`, or empty; its end-of-sequence ids count too.
    `source` names the file in errors. Raises WeightsError for an unknown architecture, a missing
    key, or a value no layer implements.
    """
    architecture = _architecture(config, source)
    _refuse_quantised(config, source)
    try:
        traits = ARCHITECTURES[architecture](config)
        return Family(**(_common(architecture, config, generation) | traits))
    except KeyError as error:
        raise WeightsError(f"{source} lacks {error.args[0]!r}, which {architecture} needs") from None
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{source}: {error}") from None


def _architecture(config: Config, source: str) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    known = ", ".join(sorted(ARCHITECTURES))
    raise WeightsError(f"{source} has architectures {names}; known: {known}")


def _refuse_quantised(config: Config, source: str) -> None:
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "an unnamed method")
        raise WeightsError(
            f"{source} says the weights are quantised by {method}; give bfloat16 ones or a GGUF file"
        )


def _common(architecture: str, config: Config, generation: Config) -> dict[str, Any]:
    num_layers, num_heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // num_heads)
    rope = read_rope(config, config, head_dim)
    return {
        "architecture": architecture,
        "num_layers": num_layers,
        "hidden_size": int(config["hidden_size"]),
        "intermediate_size": int(config["intermediate_size"]),
        "num_heads": num_heads,
        "num_kv_heads": int(config.get("num_key_value_heads") or num_heads),
        "head_dim": head_dim,
        "vocab_size": int(config["vocab_size"]),
        "max_model_len": max(int(config["max_position_embeddings"]), rope.stretched_len),
        "eos_token_ids": _ids(config.get("eos_token_id")) | _ids(generation.get("eos_token_id")),
        "norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "activation": _activation(config.get("hidden_act", "silu")),
        "tied_head": bool(config.get("tie_word_embeddings", False)),
        "attention_scale": head_dim**-0.5,
        "ropes": (rope,),
        "layer_ropes": (0,) * num_layers,
        "windows": (0,) * num_layers,
    }


def _ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value if isinstance(value, list) else [value])


def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is unknown; known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def _llama(config: Config) -> dict[str, Any]:
    bias = bool(config.get("attention_bias", False))
    return {"qkv_bias": bias, "attn_out_bias": bias, "mlp_bias": bool(config.get("mlp_bias", False))}


def _mistral(config: Config) -> dict[str, Any]:
    window = config.get("sliding_window", 4096) or 0
    return {"windows": (int(window),) * int(config["num_hidden_layers"])}


def _qwen2(config: Config) -> dict[str, Any]:
    return {"qkv_bias": True, "windows": _optional_windows(config)}


def _qwen3(config: Config) -> dict[str, Any]:
    bias = bool(config.get("attention_bias", False))
    return {"qkv_bias": bias, "attn_out_bias": bias, "qk_norm": True, "windows": _optional_windows(config)}


def _gemma2(config: Config) -> dict[str, Any]:
    return _gemma(config, 2) | {
        "attention_soft_cap": float(config.get("attn_logit_softcapping", 50.0) or 0.0),
        "logit_soft_cap": float(config.get("final_logit_softcapping", 30.0) or 0.0),
    }


def _gemma3(config: Config) -> dict[str, Any]:
    traits = _gemma(config, int(config.get("sliding_window_pattern", 6)))
    return traits | {
        "logit_soft_cap": float(config.get("final_logit_softcapping") or 0.0),
        "qk_norm": True,
        "ropes": _global_and_local_ropes(config, traits["head_dim"]),
        "layer_ropes": tuple(int(window > 0) for window in traits["windows"]),
    }


def _gemma(config: Config, period: int) -> dict[str, Any]:
    """What the Gemmas share; every `period`-th layer sees everything, the others a window."""
    head_dim = int(config.get("head_dim", 256))
    kinds = config.get("layer_types") or [
        "full_attention" if (i + 1) % period == 0 else "sliding_attention"
        for i in range(int(config["num_hidden_layers"]))
    ]
    return {
        "activation": _activation(config.get("hidden_activation") or "gelu_pytorch_tanh"),
        "norms": SANDWICH_NORM,
        "norm_offset": 1.0,
        "tied_head": bool(config.get("tie_word_embeddings", True)),
        "embedding_scale": float(config["hidden_size"]) ** 0.5,
        "attention_scale": float(config.get("query_pre_attn_scalar", 256)) ** -0.5,
        "head_dim": head_dim,
        "ropes": (read_rope(config, config, head_dim),),
        "windows": _windows(kinds, int(config.get("sliding_window") or 4096)),
    }


def _global_and_local_ropes(config: Config, head_dim: int) -> tuple[Rope, Rope]:
    by_layer_type = config.get("rope_parameters") or {}
    everywhere = {"rope_theta": config.get("rope_theta", 1e6), "rope_scaling": config.get("rope_scaling")}
    local = {"rope_theta": config.get("rope_local_base_freq", 1e4)}
    return (
        read_rope({"rope_parameters": by_layer_type.get("full_attention"), **everywhere}, config, head_dim),
        read_rope({"rope_parameters": by_layer_type.get("sliding_attention"), **local}, config, head_dim),
    )


def _optional_windows(config: Config) -> tuple[int, ...]:
    """Windows only where `use_sliding_window` says so, from layer `max_window_layers` on."""
    first = int(config.get("max_window_layers", 28))
    kinds = config.get("layer_types") or [
        "sliding_attention" if i >= first else "full_attention"
        for i in range(int(config["num_hidden_layers"]))
    ]
    return _windows(kinds, int(config.get("sliding_window") or 0) if config.get("use_sliding_window") else 0)


def _windows(kinds: list[str], window: int) -> tuple[int, ...]:
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


ARCHITECTURES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
}
"""What each architecture has beyond or instead of `_common`, by the name `config.json` gives it."""
