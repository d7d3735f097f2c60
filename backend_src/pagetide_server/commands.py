"""The commands `pagetide serve`, `pagetide add` and `pagetide front`, as typer functions."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from pagetide_server import processes
from pagetide_server.add import add_model
from pagetide_server.console import Console
from pagetide_server.errors import ServerError
from pagetide_server.front import Kind, add_front
from pagetide_server.launcher import Server
from pagetide_server.ports import Ports
from pagetide_server.supervisor import Supervisor

DEFAULT_REPOSITORY = Path("model_repository")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Repository = Annotated[
    Path, typer.Option("--model-repository", "-r", help="Directory with one directory a model.")
]


class Device(str, Enum):
    """Where models run unless their own settings say."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    sim = "sim"


def serve(
    model_repository: Repository = DEFAULT_REPOSITORY,
    http_port: Annotated[int, typer.Option(help="HTTP, with /generate_stream.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC, which the clients use.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Prometheus metrics.")] = 8002,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    device: Annotated[Device, typer.Option(help="Where models run.")] = Device.auto,
    exit_timeout_s: Annotated[int, typer.Option(min=0, help="Seconds for running requests at the end.")] = 30,
    poll_s: Annotated[int, typer.Option(min=1, help="Seconds between looks for new versions.")] = 5,
    log_file: Annotated[
        Path | None, typer.Option(help="Everything the server and its models log.", show_default=False)
    ] = None,
    log_verbose: Annotated[
        int, typer.Option("--log-verbose", "-v", count=True, help="Triton's verbose log.")
    ] = 0,
) -> None:
    """Serve the models of a repository on a real tritonserver until Ctrl-C."""
    console = Console()
    _warn_beyond_loopback(host, console)

    def make_server() -> Server:
        return Server(
            model_repository,
            ports=Ports(http_port, grpc_port, metrics_port),
            host=host,
            device=None if device is Device.auto else device.value,
            exit_timeout_s=exit_timeout_s,
            poll_s=poll_s,
            log_path=log_file,
            log_verbose=log_verbose,
        )

    processes.remove_orphaned_shared_memory()
    try:
        code = Supervisor(make_server, console).run()
    except ServerError as error:
        console.complain(str(error))
        code = 1
    raise typer.Exit(code)


def _warn_beyond_loopback(host: str, console: Console) -> None:
    if host not in _LOOPBACK:
        console.complain(
            f"listening on {host}: the bundled tritonserver has published CVEs and no passwords; "
            "use the container of docker-compose.yml where others can reach it"
        )


def add(
    checkpoint: Annotated[Path, typer.Argument(help="A Hugging Face directory or a GGUF file.")],
    name: Annotated[str, typer.Option(help="The model's name.")],
    version: Annotated[int | None, typer.Option(help="The next one if left out.")] = None,
    model_repository: Repository = DEFAULT_REPOSITORY,
    setting: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for model.json; may be repeated.")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Hard links instead of copies.")] = False,
) -> None:
    """Put a checkpoint into a model repository; a running server loads it within seconds."""
    console = Console()

    def progress(file: str, done: int, total: int) -> None:
        console.tick(f"copying {file}, {done / 1e9:.2f} of {total / 1e9:.2f} GB")

    try:
        target = add_model(
            checkpoint,
            name,
            version=version,
            model_repository=model_repository,
            settings=parse_settings(setting or []),
            link=link,
            progress=progress,
        )
    except ServerError as error:
        console.complain(str(error))
        raise typer.Exit(1) from None
    console.say(f"{target} is in place; a running server loads it within seconds")


def front(
    target: Annotated[str, typer.Argument(help="The model in the repository that does the work.")],
    kind: Annotated[Kind, typer.Option("--as", help="What clients see.")],
    name: Annotated[
        str | None, typer.Option(help="The front's own name.", show_default="TARGET_infer, ensemble")
    ] = None,
    model_repository: Repository = DEFAULT_REPOSITORY,
) -> None:
    """Serve a model under a second name to clients that expect other tensors, without a second copy of it."""
    console = Console()
    try:
        added = add_front(target, kind, name=name, model_repository=model_repository)
    except ServerError as error:
        console.complain(str(error))
        raise typer.Exit(1) from None
    console.say(f"{added} is in place; a running server loads it within seconds")


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`["max_running=8"]` as a mapping. Raises ServerError for one without `=`."""
    for pair in pairs:
        if "=" not in pair:
            raise ServerError(f"--setting {pair!r} has no '='; write KEY=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)
