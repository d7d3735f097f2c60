"""What a server's processes hold: memory, files, threads. Read before and after, to find what leaks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pagetide_server.launcher import Server


@dataclass(frozen=True)
class Usage:
    """Sums over the server and its stubs; shared memory is what lies in /dev/shm under the server's name."""

    rss_mib: float
    files: int
    threads: int
    shared_memory_mib: float

    def growth_since(self, before: Usage) -> Usage:
        return Usage(
            self.rss_mib - before.rss_mib,
            self.files - before.files,
            self.threads - before.threads,
            self.shared_memory_mib - before.shared_memory_mib,
        )


NOTHING = Usage(0.0, 0, 0, 0.0)


def usage(server: Server) -> Usage:
    pids = [server.pid, *(stub.pid for stub in server.stubs())]
    status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    shared = Path("/dev/shm").glob(f"{server._shared_memory}*")
    return Usage(
        rss_mib=sum(_number(text, "RssAnon") for text in status) / 1024,
        files=sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
        threads=sum(_number(text, "Threads") for text in status),
        shared_memory_mib=sum(path.stat().st_size for path in shared) / 2**20,
    )


def _number(status: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    assert found is not None, name
    return int(found[1])
