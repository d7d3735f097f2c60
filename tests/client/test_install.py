"""The client works on a machine that has none of the server's packages."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "tokenizers", "pagetide", "pagetide_kernels"}
SERVE_ONLY = ("pagetide_server", "torch", "transformers", "tokenizers", "safetensors", "gguf", "jinja2")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "use",
    [
        "import pagetide_client",
        "from pagetide_client.cli import main; sys.argv = ['pagetide', '--help']; main()",
    ],
)
def test_neither_the_library_nor_the_help_imports_the_server(use: str) -> None:
    code = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
{use}
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in json.loads(done.stderr)}
    assert "pagetide_client" in loaded
    assert not loaded & HEAVY


def without_the_server(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as on a machine where only the client is installed."""
    return run(f"""
import sys
sys.modules.update(dict.fromkeys({SERVE_ONLY}))
from pagetide_client.cli import main
sys.argv = ["pagetide", *{arguments}]
main()
""")


@pytest.mark.parametrize("command", ["serve", "add", "front"])
def test_the_servers_commands_say_what_to_install(command: str) -> None:
    done = without_the_server(command, "some", "--argument", "x")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("pagetide: ")
    assert "pip install 'pagetide[serve]'" in line


def test_the_clients_commands_work_without_the_server() -> None:
    done = without_the_server("generate", "Hello", "--url", "127.0.0.1:1")
    assert done.returncode == 3
    assert "no server answers at 127.0.0.1:1" in done.stderr
