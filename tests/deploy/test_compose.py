"""docker-compose.yml and its override: valid, and what they mount and build exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FILES = ("docker-compose.yml", "docker-compose.cpu.yml")


@pytest.mark.parametrize("name", FILES)
def test_the_file_follows_the_compose_specification(
    name: str, load_compose: Callable[[str], dict], tmp_path: Path
) -> None:
    instance = tmp_path / "compose.json"
    instance.write_text(json.dumps(load_compose(name)))
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(instance),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_server_reserves_a_gpu_and_the_override_takes_it_back(
    load_compose: Callable[[str], dict],
) -> None:
    base, cpu = (load_compose(name)["services"]["triton"] for name in FILES)
    (device,) = base["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]
    assert cpu["deploy"] is None


def test_every_mounted_or_built_path_exists(root: Path, load_compose: Callable[[str], dict]) -> None:
    services = load_compose(FILES[0])["services"].values()
    builds = [root / service["build"]["dockerfile"] for service in services if "build" in service]
    mounts = [
        root / _default(volume).split(":")[0]
        for service in services
        for volume in service.get("volumes", ())
        if _default(volume).startswith(".")
    ]
    missing = [str(path) for path in builds + mounts if not path.exists()]
    assert not missing


def _default(volume: str) -> str:
    """`${NAME:-./path}:/x` with NAME unset."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume)


def test_no_port_is_open_to_other_machines_unless_asked_for(load_compose: Callable[[str], dict]) -> None:
    services = load_compose(FILES[0])["services"].values()
    ports = [port for service in services for port in service.get("ports", ())]
    assert ports
    assert all(re.match(r"127\.0\.0\.1:|\$\{PAGETIDE_BIND:-127\.0\.0\.1\}:", port) for port in ports)


def test_running_requests_may_end_before_the_container_is_killed(
    root: Path, load_compose: Callable[[str], dict]
) -> None:
    dockerfile = (root / "deploy/Dockerfile").read_text()
    exit_timeout = re.search(r"--exit-timeout-secs=(\d+)", dockerfile)
    assert exit_timeout, "deploy/Dockerfile must pass --exit-timeout-secs"
    grace = load_compose(FILES[0])["services"]["triton"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > int(exit_timeout[1])


def test_images_are_pinned_and_triton_is_new_enough(root: Path, load_compose: Callable[[str], dict]) -> None:
    images = [service["image"] for service in load_compose(FILES[0])["services"].values()]
    images += re.findall(r"^ARG \w*IMAGE=(\S+)", (root / "deploy/Dockerfile").read_text(), re.M)
    assert all(re.search(r":v?\d[\w.-]*$", image) for image in images), images
    (triton,) = [
        re.search(r"tritonserver:(\d+)\.(\d+)-py3", image) for image in images if "tritonserver" in image
    ]
    assert triton
    assert (int(triton[1]), int(triton[2])) >= (26, 7)
