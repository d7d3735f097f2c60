"""`pagetide front` puts a front before a model that is there, under a name that is free."""

from __future__ import annotations

import json
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from serve_world import write_version

from pagetide_server.errors import ServerError
from pagetide_server.front import Kind, add_front, is_front


@pytest.fixture
def target(repository: Path) -> str:
    write_version(repository)
    return "counter"


@pytest.mark.parametrize(
    ("kind", "name", "imported"),
    [
        (Kind.infer, "counter_infer", "OneAnswerModel"),
        (Kind.trtllm, "ensemble", "TensorRtLlmModel"),
        (Kind.trtllm_uint32, "ensemble_uint32", "TensorRtLlmUint32Model"),
    ],
)
def test_a_front_has_the_name_its_clients_expect(
    repository: Path, target: str, kind: Kind, name: str, imported: str
) -> None:
    added = add_front(target, kind, model_repository=repository)
    assert added == repository / name / "1"
    assert json.loads((added / "model.json").read_text()) == {"target": target}
    assert (
        f"from pagetide.front_adapter import {imported} as TritonPythonModel"
        in (added / "model.py").read_text()
    )
    assert Path(cache_from_source(str(added / "model.py"))).exists()


def test_another_name_can_be_given(repository: Path, target: str) -> None:
    assert add_front(target, Kind.infer, name="other", model_repository=repository).parent.name == "other"


@pytest.mark.parametrize(
    ("asked", "name", "message"),
    [
        ("nobody", None, r"has no model 'nobody'"),
        ("counter", "counter", r"counter exists; choose another --name"),
        ("counter", "../up", r"model name '\.\./up'"),
        ("../up", None, r"model name '\.\./up'"),
    ],
)
def test_a_front_that_can_not_be_leaves_nothing_behind(
    repository: Path, target: str, asked: str, name: str | None, message: str
) -> None:
    with pytest.raises(ServerError, match=message):
        add_front(asked, Kind.infer, name=name, model_repository=repository)
    assert [path.name for path in repository.parent.rglob("*") if path.name.endswith("_infer")] == []
    assert [path.name for path in repository.iterdir()] == [target]


def test_a_front_is_told_from_a_model_with_an_engine(repository: Path, target: str) -> None:
    added = add_front(target, Kind.infer, model_repository=repository)
    assert is_front(added.parent)
    assert not is_front(repository / target)
    assert not is_front(repository / "nobody")
