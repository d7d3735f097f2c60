"""Several samples of one prompt: one answer with an entry for each, as each would be alone."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from triton_world import IDLE, Response, Triton

pytestmark = pytest.mark.server

FRANCE = "The capital of France is"
N = 3
SAMPLING = {"temperature": 1.0, "seed": 11, "max_tokens": 12}


def joined(responses: Sequence[Response], name: str = "text_output") -> list[Any]:
    """Each sample's deltas, added up."""
    columns = zip(*(response.outputs[name] for response in responses), strict=True)
    return ["".join(column) if isinstance(column[0], str) else sum(column) for column in columns]


def alone(triton: Triton, seed: int) -> str:
    return triton.text(FRANCE, sampling=SAMPLING | {"seed": seed})


def test_each_sample_is_what_its_seed_gives_alone(idle: Triton) -> None:
    asked = {"return_num_output_tokens": True, "return_finish_reason": True, "return_sample_index": True}
    responses = idle.start(FRANCE, sampling=SAMPLING | {"n": N}, **asked).all()
    texts = joined(responses)
    assert texts == [alone(idle, SAMPLING["seed"] + index) for index in range(N)]
    assert len(set(texts)) == N
    assert joined(responses, "num_output_tokens") == [12] * N
    assert all(response.outputs["sample_index"] == [0, 1, 2] for response in responses)
    assert responses[0].outputs["finish_reason"] == ["None"] * N
    assert responses[-1].outputs["finish_reason"] == ["length"] * N
    assert [response.is_final for response in responses] == [False] * (len(responses) - 1) + [True]


def test_not_streamed_all_samples_are_in_one_response_behind_the_prompt(idle: Triton) -> None:
    asked = {"return_num_input_tokens": True, "return_logprobs": True, "return_cumulative_logprob": True}
    sampling = SAMPLING | {"n": N, "logprobs": 0}
    (response,) = idle.start(FRANCE, stream=False, sampling=sampling, **asked).all()
    seeds = range(SAMPLING["seed"], SAMPLING["seed"] + N)
    assert response.outputs["text_output"] == [FRANCE + alone(idle, seed) for seed in seeds]
    assert response.outputs["num_input_tokens"] == 5
    for logprobs, total in zip(
        response.outputs["logprobs"], response.outputs["cumulative_logprob"], strict=True
    ):
        chosen = [next(iter(token.values()))["logprob"] for token in json.loads(logprobs)]
        assert total == pytest.approx(sum(chosen), rel=1e-4)


def test_token_ids_stand_one_sample_after_the_other(idle: Triton) -> None:
    asked = {"return_token_ids": True, "return_num_output_tokens": True, "exclude_input_in_output": True}
    sampling = SAMPLING | {"n": 2}
    (both,) = idle.start(FRANCE, stream=False, sampling=sampling, **asked).all()
    for index in range(2):
        (one,) = idle.start(
            FRANCE, stream=False, sampling=SAMPLING | {"seed": SAMPLING["seed"] + index}, **asked
        ).all()
        start = sum(both.outputs["num_output_tokens"][:index])
        ids = both.outputs["token_ids"][start : start + both.outputs["num_output_tokens"][index]]
        assert ids == one.outputs["token_ids"]


def test_samples_find_the_prompt_of_the_first_one(idle: Triton) -> None:
    prompt = f"{uuid.uuid4()} " + "word " * 100
    asked = {"return_num_cached_tokens": True, "return_num_input_tokens": True}
    (response,) = idle.start(prompt, stream=False, sampling=SAMPLING | {"n": N}, **asked).all()
    whole_blocks = (response.outputs["num_input_tokens"] - 1) // 16 * 16
    assert response.outputs["num_cached_tokens"] == [0, whole_blocks, whole_blocks]


def test_samples_end_one_by_one_and_the_others_go_on(idle: Triton) -> None:
    texts = [alone(idle, SAMPLING["seed"] + index) for index in range(N)]
    pieces = (texts[0][start : start + 4] for start in range(2, 20))
    stop = next(piece for piece in pieces if not any(piece in text for text in texts[1:]))
    asked = {"return_finish_reason": True, "return_stop_reason": True}
    responses = idle.start(FRANCE, sampling=SAMPLING | {"n": N, "stop": stop}, **asked).all()
    assert joined(responses) == [texts[0][: texts[0].index(stop)], *texts[1:]]
    assert responses[-1].outputs["finish_reason"] == ["stop", "length", "length"]
    assert responses[-1].outputs["stop_reason"] == [json.dumps(stop), "null", "null"]


def test_samples_end_together_when_the_time_is_over(idle: Triton) -> None:
    sampling = SAMPLING | {"n": N, "max_tokens": 8000, "ignore_eos": True, "timeout_s": 0.5}
    responses = idle.start(FRANCE, sampling=sampling, return_finish_reason=True).all()
    assert responses[-1].outputs["finish_reason"] == ["timeout"] * N
    assert responses[-1].is_final


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_all_samples(idle: Triton, stream: bool) -> None:
    cancelled = 'vllm:request_success_total{finished_reason="cancelled"}'
    before = idle.metrics()[cancelled]
    sampling = SAMPLING | {"n": N, "max_tokens": 4000, "ignore_eos": True}
    call = idle.start(FRANCE, stream=stream, sampling=sampling)
    idle.wait_for_metrics({"vllm:num_requests_running": N})
    call.cancel()
    idle.wait_for_metrics(IDLE | {cancelled: before + N})


def test_60_random_cancels_of_samples_leave_every_block_free(idle: Triton) -> None:
    def one(seed: int) -> None:
        choose = random.Random(seed)
        sampling = SAMPLING | {"n": choose.randint(2, 8), "max_tokens": 2000, "ignore_eos": True}
        prompt, stream = "word " * choose.choice([1, 20, 300]), choose.random() < 0.7
        call = idle.start(prompt, stream=stream, sampling=sampling)
        time.sleep(choose.choice([0.0, 0.002, 0.02, 0.1, 0.3]))
        call.cancel()
        with pytest.raises(grpc.RpcError):
            call.all()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(60))) == [None] * 60


def test_each_sample_follows_the_grammar(idle: Triton) -> None:
    colours = ["red", "green", "blue"]
    sampling = SAMPLING | {"n": 6, "structured_outputs": {"choice": colours}}
    responses = idle.start("My favourite colour is ", sampling=sampling, return_finish_reason=True).all()
    texts = joined(responses)
    assert set(texts) <= set(colours)
    assert len(set(texts)) > 1
    assert responses[-1].outputs["finish_reason"] == ["stop"] * 6


def test_the_prompt_is_scored_once_for_all_samples(idle: Triton) -> None:
    asked = {"return_prompt_logprobs": True, "return_num_input_tokens": True}
    responses = idle.start(FRANCE, sampling=SAMPLING | {"n": 2, "prompt_logprobs": 0}, **asked).all()
    told = [json.loads(response.outputs["prompt_logprobs"]) for response in responses]
    assert [len(scores) for scores in told if scores is not None] == [5]


def test_over_http_the_texts_are_a_list(triton: Triton) -> None:
    body = {"text_input": FRANCE, "exclude_input_in_output": True} | SAMPLING | {"n": 2}
    status, answer = triton.post("generate", body)
    assert status == 200
    seed = SAMPLING["seed"]
    assert json.loads(answer)["text_output"] == [alone(triton, seed), alone(triton, seed + 1)]
