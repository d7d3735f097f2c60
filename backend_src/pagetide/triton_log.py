"""A model's log records in Triton's log."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils


class _LogHandler(logging.Handler):
    """Sends log records to Triton's log, each at its own level."""

    def emit(self, record: logging.LogRecord) -> None:
        logger, message = pb_utils.Logger, self.format(record)
        if record.levelno >= logging.ERROR:
            logger.log_error(message)
        elif record.levelno >= logging.WARNING:
            logger.log_warn(message)
        else:
            logger.log_info(message)


def log_to_triton() -> None:
    """This process's own log, from now on."""
    root = logging.getLogger("pagetide")
    root.handlers = [_LogHandler()]
    root.setLevel(logging.INFO)
    root.propagate = False
