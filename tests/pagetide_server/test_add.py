"""A checkpoint appears in the repository whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from tiny_checkpoints import make_checkpoint

from pagetide_server.add import add_model
from pagetide_server.errors import ServerError


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "llama")


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint that the test may break."""
    return Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))


def entries(repository: Path) -> list[str]:
    """Everything in the repository, and what staging left beside it."""
    beside = [path for path in repository.parent.iterdir() if path.name.startswith(f".{repository.name}")]
    return sorted(path.name for path in [*repository.iterdir(), *beside])


def test_a_directory_becomes_version_one_and_the_next_one_two(checkpoint: Path, repository: Path) -> None:
    assert add_model(checkpoint, "tiny", model_repository=repository) == repository / "tiny" / "1"
    assert add_model(checkpoint, "tiny", model_repository=repository) == repository / "tiny" / "2"
    assert entries(repository) == ["tiny"]
    added = {path.name for path in (repository / "tiny" / "1").iterdir()}
    assert added >= {"config.json", "model.safetensors", "tokenizer.json", "model.py", "model.json"}


def test_settings_go_into_model_json(checkpoint: Path, repository: Path) -> None:
    target = add_model(checkpoint, "tiny", model_repository=repository, settings={"max_running": "8"})
    assert json.loads((target / "model.json").read_text()) == {"model": ".", "max_running": "8"}


def test_a_gguf_file_is_added_by_itself(smollm2_gguf: Path, repository: Path) -> None:
    target = add_model(smollm2_gguf, "tiny", model_repository=repository, link=True)
    assert (target / smollm2_gguf.name).samefile(smollm2_gguf)


def test_the_bytecode_beside_model_py_survives_a_copy(
    checkpoint: Path, repository: Path, tmp_path: Path
) -> None:
    """Otherwise the first import rewrites it, and Triton's poll mode loads the model twice."""
    target = add_model(checkpoint, "tiny", model_repository=repository)
    moved = Path(shutil.copytree(target, tmp_path / "moved", copy_function=shutil.copyfile))
    bytecode = Path(cache_from_source(str(moved / "model.py")))
    before = bytecode.stat().st_mtime_ns
    code = "import sys; sys.path.insert(0, sys.argv[1]); from importlib.util import find_spec\n"
    code += "find_spec('model').loader.get_code('model')"
    subprocess.run([sys.executable, "-c", code, str(moved)], check=True)
    assert bytecode.stat().st_mtime_ns == before


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named_and_nothing_is_added(missing: str, copy: Path, repository: Path) -> None:
    (copy / missing).unlink()
    with pytest.raises(ServerError, match=missing):
        add_model(copy, "tiny", model_repository=repository)
    assert entries(repository) == []


def test_a_truncated_file_is_named_and_nothing_is_added(copy: Path, repository: Path) -> None:
    weights = copy / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    with pytest.raises(ServerError, match=r"model\.safetensors"):
        add_model(copy, "tiny", model_repository=repository)
    assert entries(repository) == []


def test_a_truncated_gguf_is_named_and_nothing_is_added(
    smollm2_gguf: Path, tmp_path: Path, repository: Path
) -> None:
    cut = Path(shutil.copyfile(smollm2_gguf, tmp_path / "cut.gguf"))
    os.truncate(cut, cut.stat().st_size - 1)
    with pytest.raises(ServerError, match=r"cut\.gguf"):
        add_model(cut, "tiny", model_repository=repository)
    assert entries(repository) == []


def test_an_index_that_lists_a_tensor_no_file_holds_is_refused(copy: Path, repository: Path) -> None:
    index = {"weight_map": {"model.layers.9.nowhere.weight": "model.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ServerError, match="nowhere"):
        add_model(copy, "tiny", model_repository=repository)
    assert entries(repository) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 1}, r"tiny/1 exists; leave --version out to take 2"),
        ({"version": 0}, "version is 0"),
        ({"settings": {"max_runing": "8"}}, "unknown setting 'max_runing'"),
        ({"settings": {"max_running": "many"}}, "max_running is 'many'"),
    ],
)
def test_what_cannot_be_is_refused(
    options: dict[str, object], message: str, checkpoint: Path, repository: Path
) -> None:
    add_model(checkpoint, "tiny", model_repository=repository)
    with pytest.raises(ServerError, match=message):
        add_model(checkpoint, "tiny", model_repository=repository, **options)
    assert [path.name for path in (repository / "tiny").iterdir()] == ["1"]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "ä", "-x"])
def test_a_name_that_triton_cannot_take_is_refused(name: str, checkpoint: Path, repository: Path) -> None:
    with pytest.raises(ServerError, match="model name"):
        add_model(checkpoint, name, model_repository=repository)


def test_a_killed_add_leaves_nothing_visible_and_the_next_one_cleans_up(
    checkpoint: Path, repository: Path
) -> None:
    code = (
        "import os, sys; from pathlib import Path; from pagetide_server.add import add_model\n"
        "die = lambda name, done, total: os.kill(os.getpid(), 9)\n"
        "add_model(Path(sys.argv[1]), 'tiny', model_repository=Path(sys.argv[2]), progress=die)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(checkpoint), str(repository)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(repository.iterdir()) == []
    assert entries(repository)
    add_model(checkpoint, "tiny", model_repository=repository)
    assert entries(repository) == ["tiny"]


def test_too_little_disk_is_told_before_copying(
    checkpoint: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(repository)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ServerError, match=r"0\.0 GiB free; make room, or use --link"):
        add_model(checkpoint, "tiny", model_repository=repository)
    assert entries(repository) == []
