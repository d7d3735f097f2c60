"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and the ways to stretch its range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """The first `rotary_dim` dimensions of a head, rotated in pairs (i, i + rotary_dim / 2).

    `divisors`, one a pair, divide the frequencies (LongRoPE). `amplitude` multiplies cos and sin.
    "dynamic" equals "default" within the trained length, and a request never grows beyond it: a
    frequency that moves with the length would make the KV depend on how a prompt was chunked.
    """

    rotary_dim: int
    theta: float = 10000.0
    scaling: str = "default"
    factor: float = 1.0
    trained_len: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()
    amplitude: float = 1.0

    @property
    def stretched_len(self) -> int:
        """Positions within YaRN's reach, which configurations may leave out; 0 for other scalings."""
        return int(self.trained_len * self.factor) if self.scaling == "yarn" else 0


def read_rope(owner: Mapping[str, Any], config: Mapping[str, Any], head_dim: int) -> Rope:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before it) of `owner`.

    `config` is the whole `config.json`. Raises ValueError for a scaling type that is not in SCALINGS.
    """
    values = dict(owner.get("rope_parameters") or owner.get("rope_scaling") or {})
    scaling = values.get("rope_type") or values.get("type") or "default"
    if scaling not in SCALINGS:
        raise ValueError(f"RoPE scaling {scaling!r} is unknown; known: {', '.join(SCALINGS)}")
    partial = values.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    max_len = int(config["max_position_embeddings"])
    trained_len = int(
        values.get("original_max_position_embeddings")
        or config.get("original_max_position_embeddings")
        or max_len
    )
    factor = float(values.get("factor") or max_len / trained_len)
    return Rope(
        rotary_dim=int(head_dim * partial),
        theta=float(values.get("rope_theta") or owner.get("rope_theta") or 10000.0),
        scaling=scaling,
        factor=factor,
        trained_len=trained_len,
        low_freq_factor=float(values.get("low_freq_factor", 1.0)),
        high_freq_factor=float(values.get("high_freq_factor", 4.0)),
        beta_fast=float(values.get("beta_fast") or 32.0),
        beta_slow=float(values.get("beta_slow") or 1.0),
        truncate=bool(values.get("truncate", True)),
        divisors=_long_divisors(values, stretched=max_len > trained_len),
        amplitude=_amplitude(scaling, values, factor, trained_len),
    )


def _long_divisors(values: Mapping[str, Any], stretched: bool) -> tuple[float, ...]:
    """LongRoPE has factors for short and for long texts; a server that takes long ones uses those."""
    return tuple(float(f) for f in values.get("long_factor" if stretched else "short_factor") or ())


def _amplitude(scaling: str, values: Mapping[str, Any], factor: float, trained_len: int) -> float:
    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    if factor <= 1.0 or scaling not in ("yarn", "longrope"):
        return 1.0
    if scaling == "longrope":
        return math.sqrt(1.0 + math.log(factor) / math.log(trained_len))
    mscale, all_dim = values.get("mscale"), values.get("mscale_all_dim")
    if mscale and all_dim:
        return _yarn_amplitude(factor, mscale) / _yarn_amplitude(factor, all_dim)
    return _yarn_amplitude(factor, 1.0)


def _yarn_amplitude(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0


def frequencies(rope: Rope) -> torch.Tensor:
    """Radians per position of each rotated pair: [rotary_dim / 2] float32."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.divisors:
        return plain / torch.tensor(rope.divisors, dtype=torch.float32)
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "llama3":
        return _llama3(plain, rope)
    if rope.scaling == "yarn":
        return _yarn(plain, rope)
    return plain


def _llama3(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Llama 3.1: long waves are stretched by `factor`, short ones kept, those between interpolated."""
    turns = rope.trained_len * plain / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1.0 - kept) * plain / rope.factor + kept * plain


def _yarn(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    """YaRN (Peng et al. 2023, arXiv:2309.00071), section 3.2."""
    low, high = _yarn_dimension(rope.beta_fast, rope), _yarn_dimension(rope.beta_slow, rope)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    width = high - low or 0.001
    pairs = torch.arange(rope.rotary_dim // 2, dtype=torch.float32)
    kept = 1.0 - ((pairs - low) / width).clamp(0.0, 1.0)
    return (1.0 - kept) * plain / rope.factor + kept * plain


def _yarn_dimension(turns: float, rope: Rope) -> float:
    """The pair that turns `turns` times over the trained length."""
    return rope.rotary_dim * math.log(rope.trained_len / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
