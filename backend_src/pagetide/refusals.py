"""What a client is told when its request could not be taken."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pagetide.answer import ErrorCode, Failure
from pagetide.backlog import UnavailableError
from pagetide.chat_template import ChatTemplateError
from pagetide.grammar import TooManyGrammarsError
from pagetide.limits import AdmissionError
from pagetide.parse_values import InvalidArgumentError

log = logging.getLogger("pagetide")


def failure_of(work: Callable[[], None]) -> Failure | None:
    """Does the work; None if it could be done."""
    try:
        work()
    except (InvalidArgumentError, ChatTemplateError, AdmissionError) as error:
        return Failure(ErrorCode.INVALID_ARG, str(error))
    except (UnavailableError, TooManyGrammarsError) as error:
        return Failure(ErrorCode.UNAVAILABLE, str(error))
    except Exception as error:
        log.exception("a request was not taken")
        return Failure(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
    return None
