"""What the set-up and the launcher raise; each message names the thing, the value, and the remedy."""

from __future__ import annotations


class ServerError(RuntimeError):
    """The server cannot start, or is no longer there; the message is meant for the user as it stands."""
