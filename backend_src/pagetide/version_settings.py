"""The settings of a model version, gathered from the places where they may stand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagetide.config import Settings, SettingsError

FILE = "model.json"
DEVICE_VARIABLE = "PAGETIDE_DEVICE"


def read_settings(directory: Path, parameters: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
    """`model.json` in the version's directory counts over `parameters` (those of `config.pbtxt`), and the
    variable PAGETIDE_DEVICE over both.

    Parameters in capitals are Triton's own. Raises SettingsError that names the file or the setting.
    """
    values: dict[str, Any] = {name: value for name, value in parameters.items() if not name.isupper()}
    values |= _read(directory / FILE)
    if environment.get(DEVICE_VARIABLE):
        values["device"] = environment[DEVICE_VARIABLE]
    try:
        return Settings.from_mapping(values)
    except SettingsError as error:
        raise SettingsError(f"settings of {directory}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path} is not a JSON object")
    return values
