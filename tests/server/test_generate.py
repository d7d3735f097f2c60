"""Text, outputs and sampling parameters, as clients of the Triton vLLM backend ask for them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from triton_world import MODEL, SMALL, SMALL_BLOCKS, Triton

pytestmark = pytest.mark.server

FRANCE = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 16}
PROMPTS = [f"Write {n} words about the number {n * 7}:" for n in range(2, 66)]


def greedy(triton: Triton, **sampling: Any) -> str:
    return triton.text(FRANCE, sampling=GREEDY | sampling)


def test_one_response_holds_the_prompt_and_the_text(triton: Triton) -> None:
    (response,) = triton.start(FRANCE, stream=False, sampling=GREEDY).all()
    assert response.text.startswith(f"{FRANCE} Paris")
    assert set(response.outputs) == {"text_output"}


def test_the_prompt_can_be_left_out(triton: Triton) -> None:
    (response,) = triton.start(FRANCE, stream=False, sampling=GREEDY, exclude_input_in_output=True).all()
    assert response.text == greedy(triton)


def test_a_stream_holds_only_the_output_and_its_last_response_is_final(triton: Triton) -> None:
    request = {"triton_enable_empty_final_response": True}
    responses = triton.start(FRANCE, sampling=GREEDY, parameters=request).all()
    assert "".join(response.text for response in responses).startswith(" Paris")
    assert [response.is_final for response in responses] == [False] * (len(responses) - 1) + [True]
    assert responses[-1].outputs, "FINAL rides on a response with data"
    assert len(responses) > 2, "in pieces; how many depends on how fast tokens come"


def test_every_output_is_there_when_asked_for(triton: Triton) -> None:
    names = ["finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"]
    asked = {f"return_{name}": True for name in names}
    responses = triton.start(FRANCE, sampling=GREEDY | {"logprobs": 2}, **asked).all()
    outputs = [response.outputs for response in responses]
    assert all(set(each) == {"text_output", *names} for each in outputs)
    assert [each["finish_reason"] for each in outputs] == ["None"] * (len(outputs) - 1) + ["length"]
    assert {each["num_input_tokens"] for each in outputs} == {5}
    assert sum(each["num_output_tokens"] for each in outputs) == 16
    told = [token for each in outputs for token in json.loads(each["logprobs"])]
    assert len(told) == 16
    assert all(len(token) == 2 for token in told), "greedy: the chosen token is among the best two"
    chosen = [next(iter(token.values())) for token in told]
    assert "".join(each["decoded_token"] for each in chosen) == "".join(o["text_output"] for o in outputs)
    total = sum(each["logprob"] for each in chosen)
    assert outputs[-1]["cumulative_logprob"] == pytest.approx(total, rel=1e-4)


def test_logprobs_that_the_sampling_did_not_ask_for_are_null(triton: Triton) -> None:
    (response,) = triton.start(FRANCE, stream=False, sampling=GREEDY, return_logprobs=True).all()
    assert response.outputs["logprobs"] == "null"


def test_sampling_parameters_come_by_tensor_by_parameters_and_as_strings(triton: Triton) -> None:
    sampling = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 7, "max_tokens": 12}
    by_tensor = triton.text(FRANCE, sampling=sampling)
    assert triton.text(FRANCE, parameters=sampling) == by_tensor
    assert triton.text(FRANCE, parameters={k: str(v) for k, v in sampling.items()}) == by_tensor
    assert triton.text(FRANCE, sampling={k: str(v) for k, v in sampling.items()}) == by_tensor
    assert triton.text(FRANCE, sampling=sampling | {"seed": 8}) != by_tensor


@pytest.mark.parametrize("concurrency", [1, 8, 64])
def test_joined_deltas_are_the_text_not_streamed_at_any_concurrency(idle: Triton, concurrency: int) -> None:
    sampling = {"temperature": 0, "max_tokens": 12}
    streamed = idle.together([{"prompt": p, "sampling": sampling} for p in PROMPTS[:concurrency]])
    whole = idle.together(
        [{"prompt": p, "stream": False, "sampling": sampling} for p in PROMPTS[:concurrency]]
    )
    for prompt, deltas, (response,) in zip(PROMPTS, streamed, whole, strict=False):
        assert prompt + "".join(delta.text for delta in deltas) == response.text
    assert len({response.text for (response,) in whole}) == concurrency


def test_a_stop_string_ends_the_text_wherever_tokens_meet(idle: Triton) -> None:
    text = greedy(idle)
    for start, end in ((3, 6), (5, 9), (8, 17)):
        stop = text[start:end]
        expected = text[: text.index(stop)]
        assert greedy(idle, stop=[stop]) == expected
        assert greedy(idle, stop=stop, include_stop_str_in_output=True) == expected + stop
    (response,) = idle.start(
        FRANCE, stream=False, sampling=GREEDY | {"stop": text[3:6]}, return_finish_reason=True
    ).all()
    assert response.outputs["finish_reason"] == "stop"


def test_characters_of_many_tokens_come_whole(triton: Triton) -> None:
    prompt = "Repeat exactly: 👩‍🚀🇳🇴漢字漢字漢字 👩‍🚀🇳🇴漢字漢字漢字 👩‍🚀🇳🇴漢字"
    sampling = {"temperature": 0, "max_tokens": 40}
    deltas = [response.text for response in triton.start(prompt, sampling=sampling).all()]
    (whole,) = triton.start(prompt, stream=False, sampling=sampling, exclude_input_in_output=True).all()
    assert "".join(deltas) == whole.text
    assert len(whole.text) < len(whole.text.encode()), "the model answers beyond ASCII"
    assert all("\ufffd" not in delta for delta in deltas[:-1])


def test_max_tokens_is_cut_to_what_the_prompt_leaves(triton: Triton) -> None:
    asked = {"return_num_output_tokens": True, "return_num_input_tokens": True, "return_finish_reason": True}
    sampling = {"max_tokens": 500, "ignore_eos": True}
    (response,) = triton.start("word " * 1420, model=SMALL, stream=False, sampling=sampling, **asked).all()
    total = response.outputs["num_input_tokens"] + response.outputs["num_output_tokens"]
    assert total == SMALL_BLOCKS * 16
    assert response.outputs["finish_reason"] == "length"


def test_the_official_client_streams_with_vllms_way_of_parameters(triton: Triton) -> None:
    results: list[Any] = []
    errors: list[Any] = []

    def keep(result: Any, error: Any) -> None:
        results.append(result)
        errors.append(error)

    prompt = grpcclient.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([FRANCE.encode()], dtype=np.object_))
    stream = grpcclient.InferInput("stream", [1], "BOOL")
    stream.set_data_from_numpy(np.array([True]))
    with grpcclient.InferenceServerClient(triton.address) as client:
        client.start_stream(callback=keep)
        client.async_stream_infer(
            MODEL, [prompt, stream], request_id="7", parameters={"temperature": "0", "max_tokens": "16"}
        )
        client.stop_stream()
    assert errors == [None] * len(results)
    texts = [result.as_numpy("text_output")[0].decode() for result in results]
    assert "".join(texts) == greedy(triton)


def test_generate_over_http_takes_parameters(triton: Triton) -> None:
    body = {"text_input": FRANCE, "parameters": {"stream": False, "temperature": 0, "max_tokens": 16}}
    status, answer = triton.post("generate", body)
    assert status == 200
    assert json.loads(answer)["text_output"] == FRANCE + greedy(triton)


def test_generate_stream_over_http_sends_events(triton: Triton) -> None:
    body = {"text_input": FRANCE, "stream": True, "sampling_parameters": json.dumps(GREEDY)}
    status, answer = triton.post("generate_stream", body)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line]
    assert status == 200
    assert "".join(event["text_output"] for event in events) == greedy(triton)
    assert len(events) > 2


def test_http_tells_a_wrong_request_from_a_server_at_fault(triton: Triton) -> None:
    status, answer = triton.post("generate", {"text_input": FRANCE, "temperature": -1})
    assert status == 400
    assert json.loads(answer) == {"error": "temperature is -1.0; it must be a finite number of at least 0"}


def test_a_request_whose_time_is_over_ends_with_what_it_has(triton: Triton) -> None:
    """Also for a named tenant with a priority and a salt of its own: terms come with the sampling."""
    terms = {"timeout_s": 0.5, "tenant": "acme", "priority": 1, "cache_salt": "s"}
    asked = {"return_finish_reason": True}
    sampling = {"temperature": 0, "max_tokens": 8000, "ignore_eos": True} | terms
    responses = triton.start(FRANCE, sampling=sampling, **asked).all()
    assert responses[-1].outputs["finish_reason"] == "timeout"
    assert "".join(each.text for each in responses).startswith(" Paris")
