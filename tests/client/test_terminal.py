"""The command line on a terminal, with the keys a person presses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from client_world import Terminal

pytestmark = pytest.mark.server

Open = Callable[..., Terminal]
LONG = ("--max-tokens", "2000")


@pytest.fixture
def terminal(url: str) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(arguments, url))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_chat(
    terminal: Open, wait_until_running: Callable[[int], None]
) -> None:
    chat = terminal("chat", *LONG)
    chat.wait_for("/exit leaves")
    chat.wait_for("> ")
    chat.type("Tell me a very long story.\n")
    wait_until_running(1)
    chat.wait_for(r"story\.\r\n\S")
    chat.interrupt()
    chat.wait_for(r"\r\n> ")
    wait_until_running(0)
    chat.type("\x04")
    assert chat.wait_for_end() == 0


def test_ctrl_c_at_the_prompt_drops_the_line_and_stays(terminal: Open) -> None:
    chat = terminal("chat", *LONG)
    chat.wait_for("> ")
    chat.type("half a li")
    chat.wait_for("half a li")
    chat.interrupt()
    chat.wait_for("> ")
    chat.type("/exit\n")
    assert chat.wait_for_end() == 0


def test_an_error_in_a_chat_is_told_and_the_chat_goes_on(terminal: Open) -> None:
    chat = terminal("chat", "--max-tokens", "0")
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("pagetide: max_tokens is 0")
    chat.wait_for("> ")
    chat.type("/exit\n")
    assert chat.wait_for_end() == 0


def test_generate_shows_its_stats_on_a_terminal(terminal: Open) -> None:
    generate = terminal("generate", "Hello", "--max-tokens", "4")
    generate.wait_for("1 prompt tokens, .* tok/s")
    assert generate.wait_for_end() == 0


def test_top_refreshes_until_ctrl_c(terminal: Open, metrics_url: str) -> None:
    top = terminal("top", "--interval-s", "0.1", "--metrics-url", metrics_url)
    for _ in range(3):
        top.wait_for("smollm2 version 1")
        top.wait_for("blocks")
    top.interrupt()
    assert top.wait_for_end() == 130
    assert b"\x1b[?1049l" in top.raw, "the screen is given back"
