"""The sync client against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest

from pagetide.parse_terms import Terms
from pagetide.request import SamplingParams
from pagetide_client import (
    AsyncClient,
    Cancelled,
    Client,
    InvalidRequest,
    ModelNotFound,
    Sampling,
    Statistics,
    Timeout,
    Timeouts,
)

pytestmark = pytest.mark.server

WaitUntilRunning = Callable[[int], None]
PROMPT = "Once upon a time there was a tide of pages, and"
LONG = {"max_tokens": 2000, "ignore_eos": True}


def test_deltas_join_to_the_text_that_comes_unstreamed(client: Client) -> None:
    whole = client.generate(PROMPT, max_tokens=24, temperature=0)
    with client.stream(PROMPT, max_tokens=24, temperature=0) as stream:
        deltas = list(stream)
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas) == stream.result.text == whole.text
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert whole.finish_reason == stream.result.finish_reason


def test_a_result_counts_tokens_and_times(client: Client) -> None:
    with client.stream("Hello", max_tokens=12, temperature=0, ignore_eos=True) as stream:
        counted = sum(delta.num_output_tokens for delta in stream)
    result = stream.result
    assert counted == result.num_output_tokens == 12
    assert result.num_input_tokens == 1
    assert result.finish_reason == "length"
    assert 0 < result.ttft_s < result.total_s
    assert result.tokens_per_s > 0


def test_logprobs_come_one_entry_a_token_with_the_chosen_one_first(client: Client) -> None:
    result = client.generate(PROMPT, max_tokens=5, temperature=0, logprobs=3)
    assert len(result.logprobs) == result.num_output_tokens
    assert all(len(candidates) == 3 and candidates[0].rank == 1 for candidates in result.logprobs)
    assert "".join(candidates[0].token or "" for candidates in result.logprobs) == result.text
    assert result.cumulative_logprob == pytest.approx(sum(each[0].logprob for each in result.logprobs))


def test_a_seed_gives_the_same_text_again(client: Client) -> None:
    first, second = (client.generate(PROMPT, max_tokens=12, temperature=1.5, seed=7) for _ in range(2))
    assert first.text == second.text
    assert client.generate(PROMPT, max_tokens=12, temperature=1.5, seed=8).text != first.text


def test_messages_are_rendered_with_the_chat_template(client: Client) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    short = client.generate([question], max_tokens=16, temperature=0)
    assert short.num_input_tokens > client.generate(str(question["content"])).num_input_tokens
    history = [question, {"role": "assistant", "content": short.text}, question]
    assert client.generate(history, max_tokens=1).num_input_tokens > 2 * short.num_input_tokens - 30


def test_many_threads_stream_on_one_client_without_mixing(client: Client) -> None:
    prompts = ["tide " * (i + 1) for i in range(16)]

    def run(prompt: str) -> tuple[str, int]:
        with client.stream(prompt, max_tokens=8, ignore_eos=True) as stream:
            text = "".join(delta.text for delta in stream)
        assert (stream.result.text, stream.result.num_output_tokens) == (text, 8)
        return text, stream.result.num_input_tokens

    alone = [client.generate(prompt, max_tokens=1).num_input_tokens for prompt in prompts]
    with ThreadPoolExecutor(16) as pool:
        texts, counts = zip(*pool.map(run, prompts), strict=True)
    assert list(counts) == alone
    assert len(set(texts)) > 8


def test_leaving_the_with_block_cancels_on_the_server(
    client: Client, wait_until_running: WaitUntilRunning
) -> None:
    with client.stream(PROMPT, **LONG) as stream:
        next(stream)
        wait_until_running(1)
    wait_until_running(0)
    with pytest.raises(Cancelled, match="no result"):
        _ = stream.result


def test_breaking_out_of_the_loop_cancels_on_the_server(
    client: Client, wait_until_running: WaitUntilRunning
) -> None:
    for _ in client.stream(PROMPT, **LONG):
        break
    wait_until_running(0)


def test_another_thread_can_cancel_also_before_the_first_token(
    client: Client, wait_until_running: WaitUntilRunning
) -> None:
    streams = [client.stream(PROMPT, **LONG) for _ in range(4)]
    for stream in streams:
        threading.Thread(target=stream.cancel).start()
    for stream in streams:
        with pytest.raises(Cancelled):
            list(stream)
    wait_until_running(0)


def test_cancelling_a_finished_stream_changes_nothing(client: Client) -> None:
    with client.stream("Hello", max_tokens=2, ignore_eos=True) as stream:
        deltas = list(stream)
        stream.cancel()
    assert stream.result.num_output_tokens == sum(delta.num_output_tokens for delta in deltas) == 2


def test_a_total_timeout_cancels_on_the_server(client: Client, wait_until_running: WaitUntilRunning) -> None:
    with pytest.raises(Timeout, match=r"not finished within total_s = 0\.5 s"):
        client.generate(PROMPT, timeouts=Timeouts(total_s=0.5), **LONG)
    wait_until_running(0)


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ("", {}, "text_input is empty; it must hold at least 1 byte"),
        ("Hello", {"max_tokens": 0}, "max_tokens is 0; it must be a whole number of at least 1"),
        ("Hello", {"top_p": 1.5}, "top_p is 1.5"),
        ("Hello", {"temperature": float("nan")}, "temperature is"),
        ("Hello", {"tempratur": 1}, "unknown sampling parameter 'tempratur'; did you mean 'temperature'"),
        ([], {}, r"messages is \[\]; it must be a JSON list of at least 1 message"),
        ("a\ud800", {}, "text_input is not Unicode text: a lone surrogate at position 1"),
        ([{"role": "user", "content": "\ud800"}], {}, "messages is not Unicode text"),
        ([{"role": "user"}], {}, "the chat template refused the messages"),
    ],
)
def test_what_the_server_refuses_keeps_its_message(
    client: Client, prompt: str, sampling: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        client.generate(prompt, **sampling)
    with pytest.raises(InvalidRequest, match=message):
        list(client.stream(prompt, **sampling))


def test_an_unknown_model_or_version_is_not_found(client: Client) -> None:
    with pytest.raises(ModelNotFound, match="unknown model: 'nope'"):
        client.generate("Hello", model="nope")
    with pytest.raises(ModelNotFound, match="'smollm2' version 9"):
        client.generate("Hello", version="9")


def test_models_lists_versions_and_states(client: Client) -> None:
    (model,) = client.models()
    assert (model.name, model.version, model.ready) == ("smollm2", "1", True)
    assert client.ready()


def test_the_client_knows_the_servers_sampling_parameters() -> None:
    served = {field.name for kind in (SamplingParams, Terms) for field in fields(kind)}
    assert set(Sampling.__annotations__) == served - {"bad_word_ids"} | {"n"}, "those are made of bad_words"


def test_an_engine_tells_what_it_does_while_it_works(
    client: Client, url: str, wait_until_running: WaitUntilRunning
) -> None:
    wait_until_running(0)
    with client.stream(PROMPT, tenant="acme", **LONG) as stream:
        for _ in range(2):
            next(stream)
        told = client.statistics()
    assert [(tenant.name, tenant.num_running) for tenant in told.tenants] == [("acme", 1)]
    assert told.last_steps[-1].num_streams == 1
    assert {state for state, _ in told.block_map} <= {"free", "cached", "held", "shared"}

    async def until_nobody_is_served() -> Statistics:
        async with AsyncClient(url) as asynchronous:
            while (told := await asynchronous.statistics(model="smollm2", version="1")).tenants:
                pass
            return told

    idle = asyncio.run(asyncio.wait_for(until_nobody_is_served(), timeout=60))
    assert {state for state, _ in idle.block_map} <= {"free", "cached"}


def test_samples_stream_side_by_side_and_are_what_their_seeds_give(client: Client) -> None:
    asked: Sampling = {"max_tokens": 12, "ignore_eos": True}
    alone = [client.generate(PROMPT, seed=seed, **asked).text for seed in (5, 6, 7)]
    with client.stream(PROMPT, seed=5, n=3, **asked) as stream:
        deltas = list(stream)
    joined = ["".join(delta.text for delta in deltas if delta.sample == i) for i in range(3)]
    assert joined == [sample.text for sample in stream.result.samples] == alone
    assert [sample.finish_reason for sample in stream.result.samples] == ["length"] * 3
    assert [sample.num_output_tokens for sample in stream.result.samples] == [12] * 3
    assert stream.result.num_output_tokens == 36
    whole = client.generate(PROMPT, seed=5, n=3, **asked)
    assert [sample.text for sample in whole.samples] == alone


def test_details_are_there_when_asked_for(client: Client) -> None:
    first = client.generate(PROMPT, max_tokens=8, temperature=0, details=True, stop=" the").samples[0]
    assert len(first.token_ids) == first.num_output_tokens
    assert first.queue_time_s is not None
    assert first.prefill_time_s
    again = client.generate(PROMPT, max_tokens=8, temperature=0, details=True)
    assert 0 < (again.samples[0].num_cached_tokens or 0) < again.num_input_tokens
    assert client.generate(PROMPT, max_tokens=8).samples[0].token_ids == ()


def test_token_ids_are_a_prompt(client: Client) -> None:
    first = client.generate("Hello", max_tokens=8, temperature=0, details=True)
    ids = first.samples[0].token_ids
    assert client.generate(list(ids), max_tokens=4, temperature=0).num_input_tokens == len(ids)
    with pytest.raises(InvalidRequest, match=r"input_ids\[1\] is 99999; it must be a whole number"):
        client.generate([1, 99_999])
    with pytest.raises(InvalidRequest, match="the prompt is no list of token ids"):
        client.generate([1, 2**40])


def test_tools_go_with_messages_only(client: Client) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    question = {"role": "user", "content": "Weather in Oslo?"}
    assert client.generate([question], tools=tools, max_tokens=4, temperature=0).text
    with pytest.raises(InvalidRequest, match="tools is given with text_input"):
        client.generate("Hello", tools=tools)
