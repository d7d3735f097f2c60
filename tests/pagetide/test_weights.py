"""Loading: what a checkpoint holds ends where it belongs, whole or in shards, or the broken file is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from model_world import logits_of, random_tokens, relative_error
from safetensors.torch import load_file, save_file
from tiny_checkpoints import VOCAB_SIZE, make_checkpoint

from pagetide import tokenizer, weights
from pagetide.layers import Linear, PackedLinear
from pagetide.model import Decoder
from pagetide.weights import WeightsError

CPU = torch.device("cpu")
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def load(path: Path, rank: int = 0, world: int = 1) -> Decoder:
    return weights.load(path, device=CPU, rank=rank, world=world, make_linear=Linear)


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "copy"))


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def split_in_two(path: Path) -> None:
    """Turns the single file into two and an index, as large checkpoints come."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, path / file, {"format": "pt"})
    weight_map = {name: file for file, part in halves.items() for name in part}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_the_dtype_is_the_checkpoints_unless_asked_otherwise(tiny_llama: Path, copy: Path) -> None:
    rewrite(copy, lambda tensors: tensors.update({name: t.bfloat16() for name, t in tensors.items()}))
    assert load(tiny_llama).dtype == torch.float32
    assert load(copy).dtype == torch.bfloat16
    assert weights.load(copy, dtype=torch.float32, device=CPU).dtype == torch.float32


def test_a_sharded_checkpoint_loads_as_the_single_file_does(tiny_llama: Path, copy: Path) -> None:
    split_in_two(copy)
    tokens = random_tokens(20, VOCAB_SIZE)
    assert torch.equal(logits_of(load(copy), tokens), logits_of(load(tiny_llama), tokens))


def test_every_linear_comes_from_the_factory(tiny_llama: Path) -> None:
    made: list[torch.Size] = []

    def make_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        made.append(weight.shape)
        return Linear(weight, bias)

    weights.load(tiny_llama, device=CPU, make_linear=make_linear)
    assert made == 3 * [(128, 64), (64, 64), (192, 64), (64, 96)] + [(VOCAB_SIZE, 64)]


def linears(decoder: Decoder, name: str) -> list[Linear]:
    owner, part = name.split(".")
    return [getattr(getattr(layer, owner), part) for layer in decoder.body.layers]


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2}
    return make_checkpoint(tmp_path_factory.mktemp("biased"), attention_bias=True, mlp_bias=True, **shape)


def parts(linear: Linear, sizes: list[int]) -> list[torch.Tensor]:
    assert linear.bias is not None
    return list(torch.cat([linear.weight, linear.bias[:, None]], 1).split(sizes))


def test_two_shards_of_fused_outputs_concatenate_to_the_whole(biased: Path) -> None:
    whole, shards = load(biased), [load(biased, rank, 2) for rank in range(2)]
    for name, sizes in (("attention.qkv", [64, 16, 16]), ("ffn.gate_up", [48, 48])):
        for layer, linear in enumerate(linears(whole, name)):
            halves = zip(*(parts(linears(shard, name)[layer], sizes) for shard in shards), strict=True)
            joined = [torch.cat(half) for half in halves]
            expected = parts(linear, [2 * size for size in sizes])
            assert all(torch.equal(a, b) for a, b in zip(joined, expected, strict=True))


def test_two_shards_of_inputs_concatenate_to_the_whole_and_add_the_bias_once(biased: Path) -> None:
    whole, shards = load(biased), [load(biased, rank, 2) for rank in range(2)]
    for name in ("attention.out", "ffn.down"):
        for layer, linear in enumerate(linears(whole, name)):
            first, second = (linears(shard, name)[layer] for shard in shards)
            assert torch.equal(torch.cat([first.weight, second.weight], 1), linear.weight)
            assert linear.bias is not None
            assert torch.equal(first.bias, linear.bias)
            assert second.bias is None


def test_shards_share_kv_heads_when_there_are_fewer_than_ranks(biased: Path) -> None:
    [whole] = {linear.weight for linear in linears(load(biased), "attention.qkv")[:1]}
    keys = whole[128 : 128 + 32].split(16)
    for rank in range(4):
        shard = load(biased, rank, 4)
        assert shard.config.num_kv_heads == 1
        assert torch.equal(linears(shard, "attention.qkv")[0].weight[32:48], keys[rank // 2])


def test_the_content_id_is_the_contents_and_nothing_elses(tiny_llama: Path, copy: Path) -> None:
    original = load(tiny_llama).content_id
    assert len(original) == 32
    assert load(copy).content_id == original
    assert weights.load(copy, dtype=torch.bfloat16, device=CPU).content_id != original
    assert load(copy, 1, 2).content_id not in (original, load(copy, 0, 2).content_id)
    rewrite(copy, lambda tensors: tensors["model.norm.weight"][3:4].add_(0.125))
    assert load(copy).content_id != original


def test_the_content_id_tells_configurations_apart_that_compute_different_kv(
    tiny_llama: Path, copy: Path
) -> None:
    file = copy / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"eos_token_id": [1, 2], "transformers_version": "6"}))
    assert load(copy).content_id == load(tiny_llama).content_id
    config["rope_parameters"]["rope_theta"] = 20000.0
    file.write_text(json.dumps(config))
    assert load(copy).content_id != load(tiny_llama).content_id


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def truncate(name: str, keep: int) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:keep])


def drop_tensor(path: Path) -> None:
    rewrite(path, lambda tensors: tensors.pop(Q_PROJ))


def reshape_tensor(path: Path) -> None:
    rewrite(path, lambda tensors: tensors.update({Q_PROJ: torch.zeros(64, 32)}))


def lose_a_shard(path: Path) -> None:
    split_in_two(path)
    (path / "model-2-of-2.safetensors").unlink()


def truncate_a_shard(path: Path) -> None:
    split_in_two(path)
    truncate("model-2-of-2.safetensors", 1000)(path)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (remove("config.json"), "copy has no config.json and not exactly one GGUF"),
    "half a config": (truncate("config.json", 40), "config.json is not readable JSON"),
    "no weights": (remove("model.safetensors"), "model.safetensors is missing"),
    "half the weights": (truncate("model.safetensors", 9000), "model.safetensors is truncated"),
    "no bytes": (truncate("model.safetensors", 0), "model.safetensors is truncated"),
    "a missing tensor": (drop_tensor, f"model.safetensors has no tensor '{Q_PROJ}'"),
    "a wrong shape": (
        reshape_tensor,
        rf"model.safetensors tensor '{Q_PROJ}' has shape \[64, 32\]; its configuration says \[64, 64\]",
    ),
    "a lost shard": (lose_a_shard, "model-2-of-2.safetensors is missing"),
    "half a shard": (truncate_a_shard, "model-2-of-2.safetensors is truncated"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_checkpoint_is_refused_in_one_line_naming_the_file(copy: Path, name: str) -> None:
    damage, message = BROKEN[name]
    damage(copy)
    with pytest.raises(WeightsError, match=message) as caught:
        load(copy)
    assert "\n" not in str(caught.value)
    assert str(copy) in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("tokenizer.json"), "tokenizer.json is missing"),
        (truncate("tokenizer.json", 500), "tokenizer.json is not a whole tokenizer"),
        (truncate("tokenizer_config.json", 20), "tokenizer_config.json is not readable JSON"),
    ],
)
def test_a_broken_tokenizer_is_refused_naming_the_file(
    copy: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(copy)
    with pytest.raises(WeightsError, match=message):
        tokenizer.load(copy)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    for read in (load, tokenizer.load):
        with pytest.raises(WeightsError, match="nowhere does not exist"):
            read(tmp_path / "nowhere")


def test_partial_sums_of_two_shards_add_up_to_the_whole(biased: Path) -> None:
    whole, shards = load(biased), [load(biased, rank, 2) for rank in range(2)]
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    got = sum(shard.body.layers[0].ffn(x) for shard in shards)
    assert relative_error(torch.as_tensor(got), whole.body.layers[0].ffn(x)) < 1e-5


def test_a_tied_head_and_its_embedding_hold_one_weight(tmp_path: Path) -> None:
    loaded = weights.load(make_checkpoint(tmp_path, tie_word_embeddings=True), device=CPU)
    assert isinstance(loaded.head.linear, PackedLinear)
    assert loaded.embedding.rows == loaded.head.linear.rows
