"""The command line `pagetide`."""

from __future__ import annotations

import importlib
import sys

import typer

from pagetide_client.cli import terminal
from pagetide_client.cli.chat import chat
from pagetide_client.cli.generate import generate
from pagetide_client.cli.models import models
from pagetide_client.cli.top import top
from pagetide_client.errors import PagetideError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve large language models on Triton, and use them.",
)


def main() -> None:
    """Runs a command; its errors become one line on stderr and an exit code."""
    terminal.use_utf8()
    try:
        app()
    except PagetideError as error:
        terminal.complain(str(error))
        sys.exit(terminal.exit_code(error))
    except ModuleNotFoundError as error:
        terminal.complain(f"{error.name} is missing; {_SERVE_EXTRA}")
        sys.exit(1)


_SERVE_EXTRA = "the server's packages come with pip install 'pagetide[serve]'"


def _add_server_commands() -> None:
    """The server's commands live with the server, which a machine that only runs the client may lack."""
    try:
        commands = importlib.import_module("pagetide_server.commands")
    except ModuleNotFoundError as error:
        _add_placeholders(error.name or "pagetide_server")
    else:
        app.command()(commands.serve)
        app.command()(commands.add)
        app.command()(commands.front)


def _add_placeholders(missing: str) -> None:
    def placeholder() -> None:
        terminal.complain(f"{missing} is missing; {_SERVE_EXTRA}")
        raise typer.Exit(1)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    for name in ("serve", "add", "front"):
        app.command(name, context_settings=anything, help=f"Needs {missing}: {_SERVE_EXTRA}.")(placeholder)


_add_server_commands()
for command in (generate, chat, models, top):
    app.command()(command)
