"""A GGUF file as a source of tensors: its metadata told as a `config.json`, its names as Hugging Face's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pagetide.checkpoint import WeightsError
from pagetide.family import Family, NormNames, read_family
from pagetide.gguf_reader import GgufFile, end_token_ids
from pagetide.quantisation import GGUF_BLOCKS
from pagetide_kernels.ops import QuantisedWeight

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
_PERMUTED = frozenset({"LlamaForCausalLM"})
"""Families whose q and k rows llama.cpp stores in pairs (2i, 2i + 1) instead of (i, i + D / 2)."""

_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_IN_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_27B_LAYERS = (46, 62)


class GgufCheckpoint:
    """The tensors of one GGUF file. Raises WeightsError naming the file and what is wrong in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: Sequence[Path] = [path]
        self._file = GgufFile(path)
        self.family: Family = read_gguf_family(self._file)
        self._in_layer = _IN_LAYER | _norm_names(self.family.norms)

    def file_of(self, name: str) -> Path:
        return self.path

    def dtype(self, name: str) -> torch.dtype:
        """float32 for a tensor stored so, else bfloat16, which quantised values fit."""
        return torch.float32 if self._file.tensors[self._find(name)].kind.name == "F32" else torch.bfloat16

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises WeightsError when there is no such tensor."""
        return self._file.tensors[self._find(name)].shape

    def read(self, name: str, index: tuple[slice, ...]) -> torch.Tensor:
        """The part of the tensor that `index` selects, dequantised to float32. Rows come in whole heads."""
        rows, *rest = index
        values = torch.from_numpy(self._file.read(self._find(name), rows))
        if self._is_permuted(name):
            values = _unpermute(values, self.family.head_dim)
        kept = (slice(None), *rest)
        return values[kept]

    def codes(self, name: str, index: tuple[slice, ...]) -> QuantisedWeight | None:
        """The part of a matrix as it is stored, where the kernels know its blocks; None: they do not."""
        stored = self._find(name)
        read = GGUF_BLOCKS.get(self._file.tensors[stored].kind.name)
        rows, columns = index
        weight = read and read(torch.from_numpy(self._file.blocks(stored, rows)))
        if weight is None:
            return None
        if self._is_permuted(name):
            weight = weight.map(lambda part: _unpermute(part, self.family.head_dim))
        return weight.inputs(columns)

    def _is_permuted(self, name: str) -> bool:
        return self.family.architecture in _PERMUTED and (".q_proj." in name or ".k_proj." in name)

    def _find(self, name: str) -> str:
        found = self._translate(name)
        if found not in self._file.tensors:
            raise WeightsError(f"{self.path} has no tensor {found!r}, which {self.family.architecture} needs")
        return found

    def _translate(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if stem in _TOP:
            return f"{_TOP[stem]}.{kind}"
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{self._in_layer[part]}.{kind}"


def _norm_names(norms: NormNames) -> dict[str, str]:
    names = {
        norms.attn_in: "attn_norm",
        norms.attn_out: "post_attention_norm",
        norms.ffn_in: "ffn_norm",
        norms.ffn_out: "post_ffw_norm",
    }
    return {name: stored for name, stored in names.items() if name is not None}


def _unpermute(values: torch.Tensor, head_dim: int) -> torch.Tensor:
    pairs = values.view(-1, head_dim // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)


def read_gguf_family(file: GgufFile) -> Family:
    """The description of the model in a GGUF file. Raises WeightsError for an unknown architecture."""
    name = file.metadata.get("general.architecture")
    if name not in _ARCHITECTURES:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise WeightsError(f"{file.path} has general.architecture {name!r}; known: {known}")
    family = read_family(_as_config(file, str(name)), {}, str(file.path))
    return replace(family, norm_offset=0.0)  # GGUF stores norm weights with the offset added


def _as_config(file: GgufFile, name: str) -> dict[str, Any]:
    values = {key.removeprefix(f"{name}."): value for key, value in file.metadata.items()}
    tied = "output.weight" not in file.tensors
    config = {
        "architectures": [_ARCHITECTURES[name]],
        "num_hidden_layers": values.get("block_count"),
        "hidden_size": values.get("embedding_length"),
        "intermediate_size": values.get("feed_forward_length"),
        "num_attention_heads": values.get("attention.head_count"),
        "num_key_value_heads": values.get("attention.head_count_kv"),
        "head_dim": values.get("attention.key_length"),
        "max_position_embeddings": values.get("context_length"),
        "vocab_size": _vocab_size(file),
        "rms_norm_eps": values.get("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": tied,
        "eos_token_id": end_token_ids(file.metadata),
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "sliding_window": values.get("attention.sliding_window"),
        "rope_theta": values.get("rope.freq_base"),
        "rope_local_base_freq": values.get("rope.freq_base_swa"),
        "rope_scaling": _rope_scaling(file, values),
        "query_pre_attn_scalar": _gemma_query_scale(values),
        "attn_logit_softcapping": values.get("attn_logit_softcapping"),
        "final_logit_softcapping": values.get("final_logit_softcapping"),
    }
    return {key: value for key, value in config.items() if value is not None}


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise WeightsError(f"{file.path} has no tensor 'token_embd.weight'")
    return embedding.shape[0]


def _rope_scaling(file: GgufFile, values: dict[str, Any]) -> dict[str, Any] | None:
    if "rope_freqs.weight" in file.tensors:
        divisors = file.read("rope_freqs.weight").tolist()
        return {
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": 1.0,
        }
    kind = values.get("rope.scaling.type")
    if kind in (None, "none"):
        return None
    return {
        "rope_type": kind,
        "factor": values.get("rope.scaling.factor"),
        "original_max_position_embeddings": values.get("rope.scaling.original_context_length"),
    }


def _gemma_query_scale(values: dict[str, Any]) -> float | None:
    """The file does not say. The 27B models divide by hidden size / heads, all others by the head size."""
    if values.get("block_count") in _GEMMA_27B_LAYERS:
        return float(values["embedding_length"] / values["attention.head_count"])
    return values.get("attention.key_length")
