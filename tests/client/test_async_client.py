"""The asyncio client against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from pagetide_client import (
    AsyncClient,
    Cancelled,
    Client,
    InvalidRequest,
    ModelNotFound,
    Timeout,
    Timeouts,
)

pytestmark = pytest.mark.server

WaitUntilRunning = Callable[[int], None]
PROMPT = "Once upon a time there was a tide of pages, and"
LONG = {"max_tokens": 2000, "ignore_eos": True}


def run(url: str, use: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with AsyncClient(url) as client:
            await use(client)

    asyncio.run(connected())


def test_it_gives_what_the_sync_client_gives(url: str, client: Client) -> None:
    expected = client.generate(PROMPT, max_tokens=16, temperature=0, logprobs=1)

    async def use(client: AsyncClient) -> None:
        whole = await client.generate(PROMPT, max_tokens=16, temperature=0, logprobs=1)
        async with client.stream(PROMPT, max_tokens=16, temperature=0, logprobs=1) as stream:
            text = "".join([delta.text async for delta in stream])
        assert text == stream.result.text == whole.text == expected.text
        assert stream.result.logprobs == whole.logprobs == expected.logprobs

    run(url, use)


def test_64_streams_run_at_once_without_mixing(url: str) -> None:
    prompts = ["tide " * (i + 1) for i in range(64)]

    async def use(client: AsyncClient) -> None:
        async def num_input_tokens(prompt: str) -> int:
            async with client.stream(prompt, max_tokens=6, ignore_eos=True) as stream:
                text = "".join([delta.text async for delta in stream])
            assert (stream.result.text, stream.result.num_output_tokens) == (text, 6)
            return stream.result.num_input_tokens

        counts = await asyncio.gather(*map(num_input_tokens, prompts))
        steps = {after - before for before, after in pairwise(counts)}
        assert len(steps) == 1, "each prompt is one word longer than the one before"
        assert steps != {0}

    run(url, use)


def test_leaving_breaking_and_cancelling_all_cancel_on_the_server(
    url: str, wait_until_running: WaitUntilRunning
) -> None:
    async def use(client: AsyncClient) -> None:
        async with client.stream(PROMPT, **LONG) as stream:
            await anext(stream)
        with pytest.raises(Cancelled):
            await anext(stream)
        async for _ in client.stream(PROMPT, **LONG):
            break
        stream = client.stream(PROMPT, **LONG)
        await anext(stream)
        stream.cancel()
        with pytest.raises(Cancelled):
            await anext(stream)
        await asyncio.to_thread(wait_until_running, 0)

    run(url, use)


def test_cancel_wakes_the_task_that_waits_for_a_delta(url: str, wait_until_running: WaitUntilRunning) -> None:
    async def use(client: AsyncClient) -> None:
        stream = client.stream(PROMPT, **LONG)

        async def read() -> None:
            async for _ in stream:
                pass

        reader = asyncio.create_task(read())
        await asyncio.to_thread(wait_until_running, 1)
        stream.cancel()
        with pytest.raises(Cancelled):
            await reader
        await asyncio.to_thread(wait_until_running, 0)

    run(url, use)


def test_a_cancelled_task_stays_cancelled_and_ends_its_request(
    url: str, wait_until_running: WaitUntilRunning
) -> None:
    async def use(client: AsyncClient) -> None:
        task = asyncio.create_task(client.generate(PROMPT, **LONG))
        await asyncio.to_thread(wait_until_running, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until_running, 0)

    run(url, use)


def test_errors_are_the_sync_clients(url: str, wait_until_running: WaitUntilRunning) -> None:
    async def use(client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest, match="max_tokens is 0"):
            await client.generate("Hello", max_tokens=0)
        with pytest.raises(ModelNotFound, match="unknown model: 'nope'"):
            await client.generate("Hello", model="nope")
        with pytest.raises(Timeout, match=r"total_s = 0\.5 s"):
            await client.generate(PROMPT, timeouts=Timeouts(total_s=0.5), **LONG)
        await asyncio.to_thread(wait_until_running, 0)

    run(url, use)


def test_it_lists_models(url: str) -> None:
    async def use(client: AsyncClient) -> None:
        assert [model.name for model in await client.models() if model.ready] == ["smollm2"]
        assert await client.ready()

    run(url, use)
