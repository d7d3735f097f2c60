"""`python -m pagetide_server`: `serve`, `add` and `front` without the client's command line."""

from __future__ import annotations

import typer

from pagetide_server.commands import add, front, serve

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command()(serve)
app.command()(add)
app.command()(front)

if __name__ == "__main__":
    app()
