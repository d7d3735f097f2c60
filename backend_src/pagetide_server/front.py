"""`pagetide front`: a model that has no engine and passes its requests on to one that has."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path

from pagetide_server import repository
from pagetide_server.errors import ServerError


class Kind(str, Enum):
    """What the front looks like to its clients."""

    infer = "infer"
    trtllm = "trtllm"
    trtllm_uint32 = "trtllm-uint32"


_CLASSES = {
    Kind.infer: "OneAnswerModel",
    Kind.trtllm: "TensorRtLlmModel",
    Kind.trtllm_uint32: "TensorRtLlmUint32Model",
}
_NAMES = {Kind.infer: "{}_infer", Kind.trtllm: "ensemble", Kind.trtllm_uint32: "ensemble_uint32"}
"""The name that each kind's clients expect, or would guess, by the target's."""

_FILE = "model.json"
_KEY = "target"

MODEL_PY = '''\
"""A model without an engine: requests go on to the one that `model.json` beside this file names."""

from pagetide.front_adapter import {} as TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def add_front(target: str, kind: Kind, *, name: str | None = None, model_repository: Path) -> Path:
    """Puts a front of the model `target` into the repository; returns its version's directory.

    A running server in poll mode loads it when it appears. Raises ServerError when there is no such target,
    the name is taken, or either is not a model's name; then nothing of the front is in the repository.
    """
    chosen = name or _NAMES[kind].format(target)
    for each in (target, chosen):
        repository.check_name(each)
    if not repository.versions(model_repository / target):
        raise ServerError(f"{model_repository} has no model {target!r} to put a front before")
    model = model_repository / chosen
    if model.exists():
        raise ServerError(f"{model} exists; choose another --name")
    with repository.staging(model_repository, chosen) as staged:
        version = staged / "1"
        version.mkdir()
        (version / "model.py").write_text(MODEL_PY.format(_CLASSES[kind]))
        (version / _FILE).write_text(json.dumps({_KEY: target}, indent=2) + "\n")
        return repository.publish(staged, model, 1)


def is_front(model: Path) -> bool:
    """Whether the newest version in a model's directory is a front; False where nothing says so."""
    versions = repository.versions(model)
    try:
        settings = json.loads((model / str(versions[-1]) / _FILE).read_text()) if versions else {}
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and _KEY in settings
