from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A job in a shell's background ignores Ctrl-C, and so would every process that the tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
