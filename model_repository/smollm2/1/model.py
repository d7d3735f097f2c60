"""The class that Triton's Python backend looks for; what it serves is in `model.json` beside this file."""

from pagetide.triton_adapter import TritonPythonModel

__all__ = ["TritonPythonModel"]
