"""What a client is told when its request could not be taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from pagetide.answer import ErrorCode, Failure
from pagetide.backlog import UnavailableError
from pagetide.chat_template import ChatTemplateError
from pagetide.grammar import TooManyGrammarsError
from pagetide.limits import AdmissionError
from pagetide.parse_values import InvalidArgumentError

log = logging.getLogger("pagetide")


def failure_of(work: Callable[[], None], numbers: Iterator[int]) -> Failure | None:
    """Does the work; None if it could be done. An error of ours gets a number, which the log has too."""
    try:
        work()
    except (InvalidArgumentError, ChatTemplateError, AdmissionError) as error:
        return Failure(ErrorCode.INVALID_ARG, str(error))
    except (UnavailableError, TooManyGrammarsError) as error:
        return Failure(ErrorCode.UNAVAILABLE, str(error))
    except Exception as error:
        number = next(numbers)
        log.exception("request %d was not taken", number)
        told = f"request {number} was not taken: {type(error).__name__}: {error}"
        return Failure(ErrorCode.INTERNAL, told)
    return None
