"""`pagetide chat`: a conversation; the server renders it with the model's own chat template."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pagetide_client.cli import arguments, terminal
from pagetide_client.client import Client
from pagetide_client.errors import PagetideError
from pagetide_client.options import Message, Sampling

HELP = "/exit leaves, /reset forgets the conversation, /system TEXT sets the system message, /help shows this"


def chat(
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: arguments.MaxTokens = 512,
    temperature: arguments.Temperature = None,
    top_p: arguments.TopP = None,
    top_k: arguments.TopK = None,
    min_p: arguments.MinP = None,
    seed: arguments.Seed = None,
    url: arguments.Url = arguments.DEFAULT,
    model: arguments.Model = None,
    version: arguments.Version = "",
    timeout_s: arguments.TimeoutS = None,
) -> None:
    """Talk with a model. Ctrl-C ends an answer, Ctrl-D the conversation."""
    parameters = arguments.sampling(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed
    )
    with arguments.connect(url, model, timeout_s) as client:
        client.models()  # fails here, not after the first message
        Conversation(client, version, parameters, system).run()


class Conversation:
    """The messages so far, and the loop that asks for the next."""

    def __init__(self, client: Client, version: str, parameters: Sampling, system: str | None) -> None:
        self._client = client
        self._version = version
        self._parameters = parameters
        self._system = system
        self._turns: list[Message] = []
        self._interactive = sys.stdin.isatty()

    def run(self) -> None:
        """Until /exit or the end of the input."""
        if self._interactive:
            import readline  # noqa: F401 - gives `input` line editing and a history

            terminal.note(HELP)
        while (line := self._read()) is not None:
            if line.startswith("/"):
                if not self._command(line):
                    return
            elif line.strip():
                self._answer(line)

    def messages(self) -> list[Message]:
        """What the server gets: the system message, if there is one, and the turns."""
        head: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        return head + self._turns

    def _read(self) -> str | None:
        """The next line; None at the end. Ctrl-C drops a line that is being typed."""
        while True:
            try:
                return input("> " if self._interactive else "")
            except EOFError:
                if self._interactive:
                    terminal.show("\n")
                return None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                terminal.show("\n")

    def _command(self, line: str) -> bool:
        """Whether the conversation goes on."""
        name, _, rest = line.partition(" ")
        if name == "/exit":
            return False
        if name == "/reset":
            self._turns.clear()
        elif name == "/system":
            self._system = rest.strip() or None
        elif name == "/help":
            terminal.note(HELP)
        else:
            terminal.complain(f"unknown command {name}; {HELP}")
        return True

    def _answer(self, line: str) -> None:
        """Keeps the turn only if it was answered; an answer cut short by Ctrl-C counts."""
        self._turns.append({"role": "user", "content": line})
        text = ""
        try:
            text = self._stream()
        except PagetideError as error:
            if not self._interactive:
                raise
            terminal.complain(str(error))
        if text:
            self._turns.append({"role": "assistant", "content": text})
        else:
            self._turns.pop()

    def _stream(self) -> str:
        pieces: list[str] = []
        try:
            with (
                self._client.stream(self.messages(), version=self._version, **self._parameters) as stream,
                terminal.line() as show,
            ):
                for delta in stream:
                    pieces.append(delta.text)
                    show(delta.text)
        except KeyboardInterrupt:
            if not self._interactive:
                raise
        return "".join(pieces)
