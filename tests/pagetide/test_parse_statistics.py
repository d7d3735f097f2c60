"""Statistics are asked for alone, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagetide.parse_statistics import asks_statistics
from pagetide.parse_values import InvalidArgumentError

TEXT = np.array([b"Hello"], dtype=np.object_)


def flag(*values: bool) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.bool_)


def test_a_request_asks_for_statistics_by_one_flag() -> None:
    assert asks_statistics({"statistics": flag(True)})
    assert not asks_statistics({"statistics": flag(False), "text_input": TEXT})
    assert not asks_statistics({"text_input": TEXT})


@pytest.mark.parametrize(("name", "tensor"), [("text_input", TEXT), ("stream", flag(True))])
def test_statistics_and_anything_else_are_refused(name: str, tensor: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"statistics is true and {name} is given"):
        asks_statistics({"statistics": flag(True), name: tensor})


def test_more_than_one_flag_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="statistics has 2 elements; it must have 1"):
        asks_statistics({"statistics": flag(True, True)})
