"""The host tier's memory: one allocation, a checksum a slot, and a thread that copies."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from zlib import crc32

import torch

from pagetide.config import SettingsError
from pagetide.kv_pool import Moved

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")

log = logging.getLogger(__name__)


def check_fits_in_memory(**sizes: int) -> None:
    """Raises SettingsError when the settings' sizes add up to more memory than this process may use."""
    limit, total = memory_bytes(), sum(sizes.values())
    if total > limit:
        named = " + ".join(f"{name} ({size})" for name, size in sizes.items())
        raise SettingsError(f"{named} is {total} bytes; this machine has {limit} bytes of memory")


def memory_bytes() -> int:
    """Main memory that this process may use at most."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    text = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.exists() else "max"
    return min(machine, int(text)) if text.isdigit() else machine


class HostMemory:
    """Moves blocks between `kv_caches` (one tensor a layer, [num_blocks, ...]) and `num_slots` host slots.

    The memory, [num_slots, layers, one layer's block], is claimed here and never grows; with a GPU it is
    pinned. Saves and loads happen on a thread of its own, in the order they were asked for. Each save notes
    a CRC-32 of the slot, and a load from a slot that no longer has it is reported as damaged.
    A move waits for the steps that were launched before it was asked for: `fence()` gives what waits so.
    """

    def __init__(
        self,
        kv_caches: Sequence[torch.Tensor],
        num_slots: int,
        fence: Callable[[], Callable[[], None]] = lambda: lambda: None,
    ) -> None:
        first = kv_caches[0]
        shape = (num_slots, len(kv_caches), *first.shape[1:])
        self._caches = kv_caches
        self._slots = torch.zeros(shape, dtype=first.dtype, pin_memory=first.is_cuda)
        self._checksums = [0] * num_slots
        self._fence = fence
        self._todo: SimpleQueue[tuple[int, int, bool, Callable[[], None]]] = SimpleQueue()
        self._done: SimpleQueue[Moved] = SimpleQueue()
        threading.Thread(target=self._run, name="pagetide-host-tier", daemon=True).start()

    def save(self, block: int, slot: int) -> None:
        self._todo.put((block, slot, False, self._fence()))

    def load(self, slot: int, block: int) -> None:
        self._todo.put((block, slot, True, self._fence()))

    def take_moved(self) -> list[Moved]:
        moved = []
        while True:
            try:
                moved.append(self._done.get_nowait())
            except Empty:
                return moved

    def _run(self) -> None:
        while True:
            block, slot, is_load, wait = self._todo.get()
            wait()
            started_s = time.monotonic()
            ok = self._move(block, slot, is_load)
            self._done.put(Moved(block, slot, is_load, ok, time.monotonic() - started_s))

    def _move(self, block: int, slot: int, is_load: bool) -> bool:
        """A move that raises has failed; the thread and the moves behind it go on."""
        try:
            return self._load(slot, block) if is_load else self._save(block, slot)
        except Exception:
            log.exception("block %d and host slot %d: not moved", block, slot)
            return False

    def _save(self, block: int, slot: int) -> bool:
        for layer, cache in enumerate(self._caches):
            self._slots[slot, layer].copy_(cache[block])
        self._checksums[slot] = self._checksum(slot)
        return True

    def _load(self, slot: int, block: int) -> bool:
        if self._checksum(slot) != self._checksums[slot]:
            log.error("host slot %d is damaged: its block is computed again", slot)
            return False
        for layer, cache in enumerate(self._caches):
            cache[block].copy_(self._slots[slot, layer])
        return True

    def _checksum(self, slot: int) -> int:
        return crc32(self._slots[slot].view(torch.uint8).numpy().data)
