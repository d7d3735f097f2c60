"""Fronts on the real server: their target's answers, and nothing held when a client leaves."""

from __future__ import annotations

import json
import random
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from triton_world import DEADLINE_S, ENSEMBLE, IDLE, INFER, MODEL, Call, Triton, infer_request, wait_until
from tritonclient.grpc import service_pb2 as pb

from pagetide_server.front import Kind, add_front
from pagetide_server.launcher import Server

pytestmark = pytest.mark.server

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 24}
TYPES = {
    "text_input": ("BYTES", "bytes_contents"),
    "stop_words": ("BYTES", "bytes_contents"),
    "bad_words": ("BYTES", "bytes_contents"),
    "max_tokens": ("INT32", "int_contents"),
    "top_k": ("INT32", "int_contents"),
    "beam_width": ("INT32", "int_contents"),
    "end_id": ("INT32", "int_contents"),
    "temperature": ("FP32", "fp32_contents"),
    "top_p": ("FP32", "fp32_contents"),
    "random_seed": ("UINT64", "uint64_contents"),
    "stream": ("BOOL", "bool_contents"),
    "return_log_probs": ("BOOL", "bool_contents"),
}
CANCELLED = 'vllm:request_success_total{finished_reason="cancelled"}'
LONG = {"max_tokens": 4000, "end_id": -1}


def trtllm_request(prompt: str = PROMPT, model: str = ENSEMBLE, **values: Any) -> pb.ModelInferRequest:
    """Tensors of [1, n], as clients of TensorRT-LLM send them."""
    request = pb.ModelInferRequest(model_name=model)
    for name, value in ({"text_input": prompt} | values).items():
        values_of_it = value if isinstance(value, list) else [value]
        datatype, field = TYPES[name]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[1, len(values_of_it)])
        plain = [each.encode() if isinstance(each, str) else each for each in values_of_it]
        getattr(tensor.contents, field).extend(plain)
    return request


def start(triton: Triton, prompt: str = PROMPT, **values: Any) -> Call:
    return Call(triton.stub, trtllm_request(prompt, **{"stream": True} | values))


def post(triton: Triton, model: str, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
    request = urllib.request.Request(
        f"{triton.server.url}/v2/models/{model}/{path}", json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def expected(triton: Triton) -> str:
    """The target's own answer."""
    return triton.text(PROMPT, sampling=GREEDY)


@pytest.mark.parametrize("greedy", [{}, {"temperature": 0.0}, {"top_k": 1, "top_p": 0.0, "temperature": 1.0}])
def test_an_ensemble_streams_what_its_target_streams(
    triton: Triton, expected: str, greedy: Mapping[str, Any]
) -> None:
    responses = start(triton, max_tokens=24, **greedy).all()
    assert "".join(response.text for response in responses) == expected
    assert len(responses) > 1
    assert [response.is_final for response in responses] == [False] * (len(responses) - 1) + [True]
    assert all(set(response.outputs) == {"text_output"} for response in responses)


def test_an_ensemble_answers_once_if_not_streaming(triton: Triton, expected: str) -> None:
    (response,) = start(triton, max_tokens=24, stream=False).all()
    assert response.text == expected
    assert response.is_final


def test_http_generate_and_generate_stream_work_on_an_ensemble(triton: Triton, expected: str) -> None:
    body = {"text_input": PROMPT, "max_tokens": 24, "bad_words": "", "stop_words": ""}
    status, answer = post(triton, ENSEMBLE, "generate", body)
    assert (status, json.loads(answer)["text_output"]) == (200, expected)
    status, answer = post(triton, ENSEMBLE, "generate_stream", body | {"stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line]
    assert (status, "".join(event["text_output"] for event in events)) == (200, expected)


def test_stop_words_end_the_output(triton: Triton, expected: str) -> None:
    stop = expected[4:7]
    call = start(triton, max_tokens=24, stop_words=["", stop])
    assert call.text() == expected[: expected.index(stop)]


def test_a_seed_gives_the_same_text_twice_and_as_the_targets(triton: Triton) -> None:
    drawn = {"max_tokens": 24, "top_k": 50, "temperature": 1.0, "random_seed": 7}
    sampling = {"max_tokens": 24, "top_k": 50, "temperature": 1.0, "seed": 7}
    assert start(triton, **drawn).text() == triton.text(PROMPT, sampling=sampling)


def test_log_probabilities_are_the_targets(triton: Triton) -> None:
    responses = triton.start(
        PROMPT, sampling=GREEDY | {"logprobs": 0}, stream=False, return_cumulative_logprob=True
    ).all()
    body = {"text_input": PROMPT, "max_tokens": 24, "return_log_probs": True}
    status, answer = post(triton, ENSEMBLE, "generate", body)
    assert status == 200
    told = json.loads(answer)
    assert told["cum_log_probs"] == pytest.approx(responses[-1].outputs["cumulative_logprob"])
    assert sum(told["output_log_probs"]) == pytest.approx(told["cum_log_probs"], rel=1e-4)


def test_plain_infer_over_http_gives_the_targets_answer_once(triton: Triton, expected: str) -> None:
    body = {
        "inputs": [
            {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [PROMPT]},
            {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": [json.dumps(GREEDY)]},
        ]
    }
    status, answer = post(triton, INFER, "infer", body)
    (output,) = json.loads(answer)["outputs"]
    assert (status, output["name"], output["data"]) == (200, "text_output", [expected])


def test_plain_infer_over_grpc_gives_the_targets_answer_once(triton: Triton, expected: str) -> None:
    request = infer_request(PROMPT, stream=None, sampling=GREEDY, model=INFER, return_finish_reason=True)
    answer = triton.stub.ModelInfer(request, timeout=DEADLINE_S)
    told = dict(zip([output.name for output in answer.outputs], answer.raw_output_contents, strict=True))
    assert told["text_output"][4:].decode() == expected
    assert told["finish_reason"][4:] == b"length"


def test_64_requests_at_once_get_the_same_answers_as_one(triton: Triton, expected: str) -> None:
    def streamed() -> str:
        return start(triton, max_tokens=24).text()

    def at_once() -> str:
        request = infer_request(PROMPT, stream=None, sampling=GREEDY, model=INFER)
        return triton.stub.ModelInfer(request, timeout=DEADLINE_S).raw_output_contents[0][4:].decode()

    with ThreadPoolExecutor(64) as pool:
        asked = [pool.submit(streamed if n % 2 else at_once) for n in range(64)]
    assert {each.result() for each in asked} == {expected}


@pytest.mark.parametrize(
    "wrong",
    [{"top_p": 2.0}, {"max_tokens": 0}, {"temperature": -1.0}],
    ids=["top_p", "max_tokens", "temperature"],
)
def test_the_targets_refusal_is_passed_on_in_its_words(triton: Triton, wrong: Mapping[str, Any]) -> None:
    told = triton.error(PROMPT, sampling=dict(wrong))
    (response,) = start(triton, **wrong).all()
    assert response.error == told
    status, answer = post(triton, ENSEMBLE, "generate", {"text_input": PROMPT, **wrong})
    assert (status, json.loads(answer)["error"]) == (400, told)


def test_what_the_front_does_not_serve_is_refused(triton: Triton) -> None:
    (response,) = start(triton, beam_width=2).all()
    assert response.error == "beam_width is 2; only 1 is served"
    body = {"text_input": PROMPT, "stream": True}
    status, answer = post(triton, INFER, "generate", body)
    assert status == 400
    assert "this model answers once" in answer


def read_until_cancelled(call: Call) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call.all()
    assert caught.value.code() is grpc.StatusCode.CANCELLED


def test_a_stream_through_a_front_can_be_cancelled_between_tokens(idle: Triton) -> None:
    before = idle.metrics()[CANCELLED]
    call = start(idle, "Count:", **LONG)
    assert next(iter(call)).text
    call.cancel()
    read_until_cancelled(call)
    idle.wait_for_metrics(IDLE | {CANCELLED: before + 1})


def test_a_request_through_a_front_can_be_cancelled_before_its_first_token(idle: Triton) -> None:
    before = idle.metrics()
    call = start(idle, "word " * 6000, **LONG)
    wait_until(lambda: idle.metrics()["vllm:num_requests_running"] == 1, "the prompt is being computed")
    call.cancel()
    idle.wait_for_metrics(IDLE | {CANCELLED: before[CANCELLED] + 1})
    generated = "vllm:generation_tokens_total"
    assert idle.metrics()[generated] == before[generated]


def test_plain_infer_can_be_cancelled(idle: Triton) -> None:
    before = idle.metrics()[CANCELLED]
    sampling = {"max_tokens": 4000, "ignore_eos": True}
    asked = idle.stub.ModelInfer.future(infer_request("Count:", stream=None, sampling=sampling, model=INFER))
    wait_until(lambda: idle.metrics()["vllm:num_requests_running"] == 1, "it is being served")
    asked.cancel()
    idle.wait_for_metrics(IDLE | {CANCELLED: before + 1})


def test_a_dropped_http_stream_through_a_front_is_cancelled(idle: Triton) -> None:
    before = idle.metrics()[CANCELLED]
    body = b'{"text_input": "Count:", "stream": true, "max_tokens": 4000, "end_id": -1}'
    path = f"/v2/models/{ENSEMBLE}/generate_stream"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", idle.server.http_port)) as connection:
        connection.sendall(head.encode() + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    idle.wait_for_metrics(IDLE | {CANCELLED: before + 1})


def num_in_engine(triton: Triton) -> float:
    shown = triton.metrics()
    return shown["vllm:num_requests_running"] + shown["vllm:num_requests_waiting"]


def test_64_cancels_at_once_leave_every_block_free(idle: Triton) -> None:
    before = idle.metrics()[CANCELLED]
    calls = [start(idle, f"Count {n}:", **LONG) for n in range(64)]
    wait_until(lambda: num_in_engine(idle) == 64, "all of them are in the engine")
    for call in calls:
        call.cancel()
    idle.wait_for_metrics(IDLE | {CANCELLED: before + 64})


def test_300_random_cancels_disturb_nobody_else(idle: Triton) -> None:
    """An error response over BLS once reached another call of the same front and ended the server."""
    before = idle.metrics()[CANCELLED]

    def one(seed: int) -> None:
        choose = random.Random(seed)
        call = start(idle, f"Count {seed}:", max_tokens=choose.choice([1, 4, 16]))
        if seed % 2:
            time.sleep(choose.choice([0.0, 0.002, 0.02, 0.1]))
            call.cancel()
        else:
            assert call.text()

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(one, range(300))) == [None] * 300
    idle.wait_until_idle()
    assert idle.metrics()[CANCELLED] > before


def test_a_fronts_process_holds_neither_torch_nor_weights(triton: Triton) -> None:
    for model in (ENSEMBLE, INFER):
        (stub,) = triton.server.stubs(model)
        assert "libtorch" not in Path(f"/proc/{stub.pid}/maps").read_text()


def test_a_front_without_its_target_says_so_and_works_once_it_is_there(
    tmp_path: Path, repository_copy: Path
) -> None:
    elsewhere = tmp_path / MODEL
    add_front(MODEL, Kind.infer, model_repository=repository_copy)
    (repository_copy / MODEL).rename(elsewhere)
    with Server(repository_copy, device="cpu", log_path=tmp_path / "server.log") as server:
        server.wait_ready(INFER)
        triton = Triton(server)
        request = infer_request(PROMPT, stream=None, model=INFER)
        with pytest.raises(grpc.RpcError) as caught:
            triton.stub.ModelInfer(request, timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == f"UNAVAILABLE: model {MODEL} is not ready"
        elsewhere.rename(repository_copy / MODEL)
        server.wait_ready(MODEL)
        assert triton.stub.ModelInfer(request, timeout=DEADLINE_S).outputs
