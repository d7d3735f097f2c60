"""Decoders over quantised weights and KV: stored codes are taken as they are, other matrices quantised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from model_world import check_neighbours_change_no_bit, logits_of, random_tokens, relative_error
from test_weights_gguf import ARCHITECTURES, OPTIONS, write_gguf
from tiny_checkpoints import VOCAB_SIZE, make_checkpoint

from pagetide import build, weights
from pagetide.compiled import CompiledStack
from pagetide.config import Settings, SettingsError
from pagetide.layers import Linear, QuantisedLinear
from pagetide.model import Decoder, LayerByLayer
from pagetide.quantisation import BITS, HEAD_BITS, joined
from pagetide.runner import kv_block_bytes
from pagetide.weights import WeightsError
from pagetide_kernels import decoder, ops

CPU = torch.device("cpu")
F32, BF16 = torch.float32, torch.bfloat16
KINDS = {name: gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q8_0")}
TOLERANCES = {F32: 1e-5, BF16: 2e-2}

needs_vectors = pytest.mark.skipif(not decoder.is_fast(), reason="this CPU has no AVX2")


def load(path: Path, quantization: str | None, dtype: torch.dtype = F32) -> Decoder:
    return weights.load(path, dtype=dtype, device=CPU, quantization=quantization)


def test_the_settings_and_what_they_make_of_a_matrix_are_the_same() -> None:
    for quantization in ("none", *BITS):
        assert Settings.from_mapping({"quantization": quantization}).quantization == quantization
    assert BITS.keys() == HEAD_BITS.keys()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_checkpoint_is_quantised_as_it_is_loaded(tiny_llama: Path, quantization: str) -> None:
    def dequantised(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        bits = (HEAD_BITS if len(weight) == VOCAB_SIZE else BITS)[quantization]
        return Linear(ops.quantise(weight, bits).dequantised(), bias)

    want = weights.load(tiny_llama, dtype=F32, device=CPU, make_linear=dequantised)
    tokens = random_tokens(60, VOCAB_SIZE)
    assert relative_error(logits_of(load(tiny_llama, quantization), tokens), logits_of(want, tokens)) < 1e-5


def test_a_tied_embedding_is_the_heads_codes(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, tie_word_embeddings=True)
    model, ids = load(checkpoint, "int8"), torch.arange(VOCAB_SIZE)
    head = model.head.linear
    assert isinstance(head, QuantisedLinear)
    torch.testing.assert_close(model.embedding(ids), head(torch.eye(64)).T)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gguf_files_blocks_are_taken_as_they_are(tmp_path: Path, name: str, kind: str) -> None:
    checkpoint = make_checkpoint(tmp_path, name, **OPTIONS[name])
    path = write_gguf(checkpoint, ARCHITECTURES[name], KINDS[kind])
    opened = weights.open_checkpoint(path)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"):
        stored = f"model.layers.0.{part}.weight"
        index = tuple(slice(0, size) for size in opened.shape(stored))
        codes = opened.codes(stored, index)
        assert codes is not None
        assert torch.equal(codes.dequantised(), opened.read(stored, index))
    tokens = random_tokens(60, VOCAB_SIZE)
    want = logits_of(load(path, None), tokens)
    assert relative_error(logits_of(load(path, "gguf"), tokens), want) < 1e-5


def test_other_types_of_a_gguf_file_become_8_bits(tmp_path: Path) -> None:
    path = write_gguf(make_checkpoint(tmp_path), gguf.MODEL_ARCH.LLAMA, gguf.GGMLQuantizationType.F16)
    model = load(path, "gguf")
    assert model.body.layers[0].ffn.down.packed.bits == 8
    tokens = random_tokens(60, VOCAB_SIZE)
    assert relative_error(logits_of(model, tokens), logits_of(load(path, None), tokens)) < 0.05


def test_parts_of_different_kinds_are_not_joined(tiny_llama: Path) -> None:
    weight = torch.randn(32, 64)
    four, eight = ops.quantise(weight, 4), ops.quantise(weight, 8)
    assert joined([four, eight]) is None
    assert joined([four, None]) is None
    both = joined([four, four])
    assert both is not None
    assert torch.equal(both.dequantised(), four.dequantised().repeat(2, 1))


def test_shards_of_blocks_concatenate_to_the_whole(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, intermediate_size=128)
    path = write_gguf(checkpoint, gguf.MODEL_ARCH.LLAMA, KINDS["Q4_1"])

    def down(rank: int, world: int) -> torch.Tensor:
        model = weights.load(path, dtype=F32, device=CPU, rank=rank, world=world, quantization="gguf")
        packed = model.body.layers[0].ffn.down.packed
        return packed.rows(torch.arange(packed.num_outputs))

    assert torch.equal(torch.cat([down(0, 2), down(1, 2)], 1), down(0, 1))


@needs_vectors
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["f32", "bf16"])
@pytest.mark.parametrize("kind", [*KINDS, "int8", "int4"])
def test_the_compiled_stack_gives_the_logits_of_the_layers(
    tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    path = make_checkpoint(tmp_path, attention_bias=True, mlp_bias=True)
    if kind in KINDS:
        path = write_gguf(path, gguf.MODEL_ARCH.LLAMA, KINDS[kind])
    compiled = load(path, "gguf" if kind in KINDS else kind, dtype)
    assert isinstance(compiled.stack, CompiledStack)
    plain = replace(compiled, stack=LayerByLayer(compiled.body))
    tokens = random_tokens(300, VOCAB_SIZE)
    assert relative_error(logits_of(compiled, tokens), logits_of(plain, tokens)) < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=["f32", "bf16"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_chunks_and_neighbours_change_no_bit(
    tiny_llama: Path, quantization: str, dtype: torch.dtype, num_threads: int
) -> None:
    check_neighbours_change_no_bit(load(tiny_llama, quantization, dtype), VOCAB_SIZE, num_threads)


def with_int8_kv(path: Path, dtype: torch.dtype = F32, quantization: str | None = None) -> Decoder:
    return weights.load(path, dtype=dtype, kv_dtype=torch.int8, device=CPU, quantization=quantization)


@needs_vectors
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["f32", "bf16"])
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_with_an_int8_cache_the_compiled_stack_gives_the_logits_of_the_layers(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    compiled = with_int8_kv(make_checkpoint(tmp_path, name, head_dim=32), dtype)
    assert isinstance(compiled.stack, CompiledStack)
    plain = replace(compiled, stack=LayerByLayer(compiled.body))
    tokens = random_tokens(300, VOCAB_SIZE)
    # A value in another place of its last bit may become the neighbouring code.
    assert relative_error(logits_of(compiled, tokens), logits_of(plain, tokens)) < 2e-2


def test_an_int8_cache_changes_logits_little(tiny_llama: Path) -> None:
    tokens = random_tokens(300, VOCAB_SIZE)
    want = logits_of(load(tiny_llama, None), tokens)
    got = logits_of(with_int8_kv(tiny_llama), tokens)
    assert 0 < relative_error(got, want) < 0.05


@pytest.mark.parametrize("quantization", [None, "int4"])
def test_with_an_int8_cache_chunks_and_neighbours_change_no_bit(
    tiny_llama: Path, quantization: str | None
) -> None:
    check_neighbours_change_no_bit(with_int8_kv(tiny_llama, BF16, quantization), VOCAB_SIZE, num_threads=2)


def test_an_int8_cache_takes_half_the_memory(tiny_llama: Path) -> None:
    wide, narrow = weights.load(tiny_llama, dtype=BF16, device=CPU), with_int8_kv(tiny_llama, BF16)
    assert kv_block_bytes(narrow) == kv_block_bytes(wide) * (16 + 4) // 32


def test_a_prefix_is_never_a_hit_for_other_weights(tiny_llama: Path) -> None:
    loaded = [load(tiny_llama, quantization).content_id for quantization in (None, "int8", "int4")]
    assert len(set(loaded)) == 3


def test_what_cannot_be_quantised_is_refused_by_name(tmp_path: Path, tiny_llama: Path) -> None:
    narrow = make_checkpoint(tmp_path / "narrow", intermediate_size=80)
    with pytest.raises(
        WeightsError, match=r"down_proj.weight' has inputs 0 to 80 here; quantization 'int4' needs"
    ):
        load(narrow, "int4")
    with pytest.raises(
        WeightsError, match="is no GGUF file, whose blocks quantization 'gguf' takes; set 'int8' or"
    ):
        load(tiny_llama, "gguf")
    with pytest.raises(
        SettingsError, match="quantization is 'int3'; it must be one of none, int8, int4, gguf"
    ):
        Settings.from_mapping({"quantization": "int3"})
    on_sim = Settings(model=str(tiny_llama), device="sim", quantization="int8")
    with pytest.raises(
        SettingsError, match="quantization is 'int8', which needs device 'cpu'; on a GPU set it to"
    ):
        build.build(on_sim, tmp_path, on_step=lambda stats: None)
