"""xgrammar without torch and transformers, for the process that only compiles grammars.

The package imports both, and its compiler uses neither. Without them the process starts in half a second of
a core instead of three, and takes 100 MB instead of 290. Nothing else may import this module: where it was
imported, there is no torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Absent(ModuleType):
    """Has a class of any name, so that annotations and subclasses of what is not there can stand."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *values, **options: None})


def _load() -> Any:
    sys.modules["torch"] = None  # type: ignore[assignment]  # tvm_ffi then does without
    import_module("tvm_ffi")
    for name in ("torch", "transformers"):
        sys.modules[name] = _Absent(name)
    return import_module("xgrammar")


xgrammar = _load()
