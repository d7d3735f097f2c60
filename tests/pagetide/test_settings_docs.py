"""docs/settings.md lists every setting with its default, and nothing else."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

from pagetide.config import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_has_every_setting_and_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    assert {name: default.strip("`") for name, default in rows} == {
        each.name: "none" if each.default in (MISSING, None, "") else str(each.default).lower()
        for each in fields(Settings)
    }
