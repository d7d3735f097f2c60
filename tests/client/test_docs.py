"""The Python in docs/client.md runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.server
@pytest.mark.parametrize("example", EXAMPLES, ids=["sync", "asyncio"])
def test_an_example_runs(url: str, example: str) -> None:
    assert "127.0.0.1:8001" in example
    code = example.replace("127.0.0.1:8001", url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) >= 2
