"""What the settings of a model forbid is refused by field, value and limit; tools reach its template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoints import make_checkpoint
from triton_world import SHIPPED, Triton

from pagetide import tokenizer
from pagetide_server.launcher import Server

pytestmark = pytest.mark.server

LIMITED = "limited"
SETTINGS = {
    "max_running": 1,
    "max_waiting": 2,
    "max_waiting_tokens": 50,
    "max_request_bytes": 300,
    "max_prompt_tokens": 100,
    "max_output_tokens": 60_000,
    "max_n": 2,
    "max_logprobs": 3,
}
TOOLS = "tools"
TEMPLATE = """
{%- if tools %}{% for tool in tools %}
{%- if tool.function.name == 'rm' %}{{ raise_exception('no tool may be named rm') }}{% endif %}
{{- '<tool>' + tool | tojson + '</tool>' }}{% endfor %}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + ' ' }}
{%- if message.tool_calls %}{% for call in message.tool_calls %}
{{- call.function.name + '(' + call.function.arguments.city + ')' }}{% endfor %}
{%- else %}{{ message.content }}{% endif %}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}
"""
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
CONVERSATION = [
    {"role": "user", "content": "Weather in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
]
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_checkpoint(tmp_path_factory.mktemp("tiny") / "llama", max_position_embeddings=65_536)
    (path / "chat_template.jinja").write_text(TEMPLATE.strip())
    return path


@pytest.fixture(scope="module")
def tiny(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    place = tmp_path_factory.mktemp("limits")
    for name, settings in ((TOOLS, {}), (LIMITED, SETTINGS)):
        version = place / "repository" / name / "1"
        version.mkdir(parents=True)
        shutil.copy(SHIPPED / "smollm2" / "1" / "model.py", version)
        (version / "model.json").write_text(json.dumps({"model": str(checkpoint)} | settings))
    with Server(place / "repository", device="cpu", log_path=place / "server.log") as server:
        server.wait_ready(TOOLS)
        server.wait_ready(LIMITED)
        yield Triton(server)


def text(value: object) -> np.ndarray[Any, Any]:
    return np.array([json.dumps(value).encode()], dtype=np.object_)


def ids(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "x" * 101}, "text_input has 101 tokens; it must have at most 100"),
        ({"prompt": "x" * 299}, "the request has 302 bytes; it must have at most 300"),
        ({"sampling": {"max_tokens": 60_001}}, "max_tokens is 60001; this model serves at most 60000"),
        ({"sampling": {"n": 3}}, "n is 3; it must be a whole number, 1 to 2"),
        ({"sampling": {"logprobs": 4}}, "logprobs is 4; this model serves at most 3"),
    ],
)
def test_beyond_a_limit_a_request_is_refused(tiny: Triton, options: dict[str, Any], message: str) -> None:
    assert message in tiny.error(model=LIMITED, **options)


def test_a_full_queue_says_how_long_to_wait(tiny: Triton) -> None:
    long = {"model": LIMITED, "sampling": {"max_tokens": 60_000, "ignore_eos": True}}
    running = tiny.start("run", **long)
    next(iter(running))
    waiting = [tiny.start("wait", **long)]
    tiny.wait_for_metrics({"vllm:num_requests_running": 1, "vllm:num_requests_waiting": 1}, LIMITED)
    too_long = tiny.error("x" * 47, model=LIMITED)
    assert too_long.startswith("UNAVAILABLE: 4 prompt tokens wait already and this request has 47; ")
    assert "max_waiting_tokens is 50; retry in about " in too_long
    of_two = tiny.error("x", model=LIMITED, sampling={"n": 2})
    assert of_two.startswith("UNAVAILABLE: 1 requests wait already; max_waiting is 2")
    waiting.append(tiny.start("wait", **long))
    tiny.wait_for_metrics({"vllm:num_requests_waiting": 2}, LIMITED)
    refused = tiny.error("x", model=LIMITED)
    assert refused.startswith("UNAVAILABLE: 2 requests wait already; max_waiting is 2; retry in about ")
    assert refused.endswith(" s")
    status, told = tiny.post("generate", {"text_input": "x"}, LIMITED)
    assert status >= 400
    assert json.loads(told)["error"].startswith("UNAVAILABLE: 2 requests wait already; max_waiting is 2")
    for call in (running, *waiting):
        call.cancel()
    tiny.wait_until_idle(LIMITED)


def test_tools_and_their_calls_reach_the_template(tiny: Triton, checkpoint: Path) -> None:
    """What the template wrote is seen by what the model answers to it."""
    of = tokenizer.load(checkpoint)
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    read = [CONVERSATION[0], {"role": "assistant", "tool_calls": [call]}, CONVERSATION[2]]
    rendered = of.apply_chat_template(read, tools=[WEATHER], add_generation_prompt=True)
    assert '<tool>{"type": "function"' in rendered
    assert "weather(Oslo)" in rendered
    tensors = {"messages": text(CONVERSATION), "tools": text([WEATHER])}
    asked = {"model": TOOLS, "sampling": GREEDY, "return_token_ids": True, "return_num_input_tokens": True}
    (answer,) = tiny.start(None, stream=False, tensors=tensors, **asked).all()
    rendered_ids = ids(*of.encode(rendered, add_special_tokens=False))
    (expected,) = tiny.start(None, stream=False, tensors={"input_ids": rendered_ids}, **asked).all()
    assert answer.outputs == expected.outputs
    without = {"messages": text(CONVERSATION)}
    (other,) = tiny.start(None, stream=False, tensors=without, **asked).all()
    assert other.outputs["num_input_tokens"] < answer.outputs["num_input_tokens"]


@pytest.mark.parametrize(
    ("messages", "tools", "message"),
    [
        (CONVERSATION, [{"function": {"name": "rm"}}], "the messages: no tool may be named rm"),
        (CONVERSATION, [{"name": "bare"}], "the messages: 'dict object' has no attribute 'function'"),
        (CONVERSATION, {"name": "rm"}, "tools is {'name': 'rm'}; it must be a JSON list of tools"),
    ],
)
def test_what_the_template_refuses_is_told(
    tiny: Triton, messages: object, tools: object, message: str
) -> None:
    tensors = {"messages": text(messages), "tools": text(tools)}
    assert message in tiny.error(None, model=TOOLS, tensors=tensors)
