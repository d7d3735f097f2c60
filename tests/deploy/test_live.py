"""The load test and the monitoring against a real server: traffic goes through, and every panel shows it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from loadtest.records import Outcome
from loadtest.stream import Connection
from loadtest.workloads import Prompt
from pagetide_server.launcher import Server
from pagetide_server.ports import free_ports

pytestmark = pytest.mark.server
ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("live")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "model_repository", place / "repository", ignore=ignored)
    with Server(place / "repository", device="cpu", log_path=place / "server.log") as server:
        server.wait_ready(MODEL)
        yield server


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    connection = Connection(f"{server.host}:{server.grpc_port}", MODEL)
    yield connection
    connection.hang_up()


def locust(server: Server, results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--only-summary"]
    command += ["--host", f"{server.host}:{server.grpc_port}", "--stop-timeout", "60"]
    command += ["--metrics-url", f"http://{server.host}:{server.metrics_port}/metrics"]
    command += ["--results", str(results), "--max-prompt", "64", "--max-output", "8", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, env=os.environ)


def test_a_request_yields_as_many_tokens_as_it_asked_for(connection: Connection) -> None:
    record = connection.send(Prompt("test", "the of and to in is that for", 12))
    assert record.error == ""
    assert record.outcome is Outcome.OK
    assert (record.prompt_tokens, record.output_tokens) == (8, 12)
    times = [record.due_s, *(time_s for time_s, _ in record.responses), record.end_s]
    assert times == sorted(times)
    assert record.text


@pytest.mark.parametrize("after", [0, 3])
def test_a_cancelled_request_ends_early_and_the_next_one_is_whole(connection: Connection, after: int) -> None:
    cut = connection.send(Prompt("test", "the of and", 400, cancel_after=after))
    assert cut.outcome is Outcome.CANCELLED
    assert after <= cut.output_tokens < 400
    assert connection.send(Prompt("test", "the of and", 4)).outcome is Outcome.OK


def test_what_the_server_refuses_is_a_failed_request_that_says_why(connection: Connection) -> None:
    record = connection.send(Prompt("test", "the", -1))
    assert record.outcome is Outcome.FAILED
    assert "max_tokens" in record.error
    assert connection.send(Prompt("test", "the of and", 4)).outcome is Outcome.OK


def test_all_closed_loop_clients_run_without_an_error(server: Server, tmp_path: Path) -> None:
    # More connections than gevent has threads by default.
    arguments = ("-u", "12", "-r", "12", "-t", "10s", "--burst-every", "3", "--system-tokens", "16")
    done = locust(server, tmp_path, *arguments, "Completion", "Chat", "Cancels", "LongPrompts")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["failed"] == 0
    assert summary["itl_ms"]["count"] > summary["ttft_ms"]["count"] > 0
    with (tmp_path / "requests.csv").open() as file:
        assert {row["workload"] for row in csv.DictReader(file)} == {"sharegpt", "chat", "cancels", "long"}
    with (tmp_path / "server.csv").open() as file:
        assert max(float(row["vllm:num_requests_running"]) for row in csv.DictReader(file)) > 0


def test_a_trace_is_replayed_when_its_requests_are_due(server: Server, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{second:02}.0000000,20,4" for second in (0, 0, 2, 4)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    done = locust(
        server, tmp_path, "-u", "1", "-t", "8s", "OpenLoop", "--trace", str(trace), "--trace-speed", "2"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "requests.csv").open() as file:
        due = sorted(float(row["due_s"]) for row in csv.DictReader(file))
    assert due == pytest.approx([0, 0, 1, 2])


def test_a_failed_request_fails_the_run(server: Server, tmp_path: Path) -> None:
    done = locust(server, tmp_path, "-u", "1", "-t", "2s", "Completion", "--model", "absent")
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert "absent" in done.stdout


@pytest.fixture
def prometheus(server: Server, tmp_path: Path) -> Iterator[str]:
    """A Prometheus with our configuration, pointed at the server."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (Debian and Ubuntu: apt-get install prometheus)")
    shutil.copytree(ROOT / "deploy/prometheus", tmp_path / "config")
    config = yaml.safe_load((tmp_path / "config/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"{server.host}:{server.metrics_port}"]
    (tmp_path / "config/prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports().http}"
    command = [binary, f"--config.file={tmp_path}/config/prometheus.yml", f"--web.listen-address={address}"]
    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--storage.tsdb.path={tmp_path}/data"], stdout=log, stderr=subprocess.STDOUT
        )
    yield f"http://{address}"
    process.terminate()
    process.wait(30)


def query(prometheus: str, expression: str) -> list[dict]:
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=10) as reply:
        return json.load(reply)["data"]["result"]


def wait_for(prometheus: str, expression: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if query(prometheus, expression):
                return
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"{expression} has no value after {timeout_s:g} s")


def test_every_panel_and_rule_of_ours_shows_the_traffic(
    prometheus: str, connection: Connection, dashboard_expressions: dict[str, str], rules: list[dict]
) -> None:
    wait_for(prometheus, 'vllm:request_success_total{finished_reason="length"}')
    for _ in range(3):
        assert connection.send(Prompt("test", "the of and to in is that for", 8)).outcome is Outcome.OK
        time.sleep(1.1)
    wait_for(prometheus, "model_version:ttft_seconds:p99 > 0")
    recorded = {rule["record"]: rule["record"] for rule in rules if "record" in rule}
    ours = {title: e for title, e in dashboard_expressions.items() if "nv_gpu_" not in e}
    empty = [title for title, expression in (ours | recorded).items() if not query(prometheus, expression)]
    assert not empty
    firing = query(prometheus, 'ALERTS{alertstate="firing"}')
    assert not firing
