"""Sends broken requests to a real server while good streams run, and says what came of it.

    make fuzz ARGS="--count 10000 --seed 1"

Starts a server of its own. Every case is made from the seed and its number: `--only NUMBER` sends one
again and shows it.
"""

from __future__ import annotations

import argparse
import http.client
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fuzz_cases
import grpc
from fuzz_cases import Case
from triton_world import MODEL, Triton, copy_of_the_shipped_repository
from tritonclient.grpc import service_pb2_grpc
from usage import NOTHING, Usage, usage

from pagetide_server.launcher import Server

NUM_SENDERS = 16
WARM_UP = 300
"""Requests before the first look at memory: by then caches and allocators have what they keep."""

ANSWER_S = 120.0
SAMPLING = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
GOOD = [
    {"prompt": f"Tell a story about {animal}.", "sampling": SAMPLING}
    for animal in ("cats", "dogs", "owls", "bees", "ants", "cows", "bats", "eels")
]
SERVED = "served"
OUR_FAULTS = ("INTERNAL:", "UNAVAILABLE:", "CANCELLED:")


@dataclass(frozen=True)
class Answer:
    """`code` is gRPC's or HTTP's; an error inside a stream has `error`, and one without text is `SERVED`."""

    code: str
    error: str


@dataclass
class Report:
    """`wrong` are the cases whose answer was none that they may have, each with its number."""

    num_cases: int
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    num_streams: int = 0
    num_changed_streams: int = 0
    before: Usage = NOTHING
    after: Usage = NOTHING

    @property
    def growth(self) -> Usage:
        return self.after.growth_since(self.before)

    def __str__(self) -> str:
        lines = [
            f"{self.num_cases} requests in {self.seconds:.0f} s beside {self.num_streams} good streams, "
            f"of which {self.num_changed_streams} changed; {len(self.wrong)} wrong answers",
            f"before: {self.before}",
            f"after:  {self.after}",
            "",
            *(f"{count:6}  {error}" for error, count in self.errors.most_common()),
            "",
            *(f"WRONG {each}" for each in self.wrong),
        ]
        return "\n".join(lines)


class Sender:
    """One client: a gRPC connection and an HTTP one of its own."""

    def __init__(self, triton: Triton) -> None:
        self._channel = grpc.insecure_channel(
            triton.address, [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._port = triton.server.http_port

    def send(self, case: Case) -> Answer:
        return self._call(case) if case.request is not None else self._post(case)

    def close(self) -> None:
        self._channel.close()

    def _call(self, case: Case) -> Answer:
        try:
            messages = list(self._stub.ModelStreamInfer(iter([case.request]), timeout=ANSWER_S))
        except grpc.RpcError as error:
            return Answer(error.code().name, error.details() or "")
        errors = [message.error_message for message in messages if message.error_message]
        return Answer("OK", errors[-1] if errors else SERVED)

    def _post(self, case: Case) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        try:
            connection.request("POST", f"/v2/models/{MODEL}/{case.path}", case.body)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return Answer("no answer", repr(error))
        finally:
            connection.close()
        found = re.search(r'"error":"(.*)"', text)
        return Answer(str(answer.status), found[1] if found else (SERVED if answer.status < 400 else text))


def is_wrong(case: Case, answer: Answer) -> bool:
    """A hang, a crash, an error of the server's own, or a broken request that was served."""
    if answer.error == SERVED:
        return not case.is_edge
    if answer.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "CANCELLED", "no answer"):
        return True
    return answer.error.startswith(OUR_FAULTS)


def shape_of(answer: Answer) -> str:
    """The message without what it quotes, so that those of one kind count as one."""
    text = re.sub(r"\[request id: .*?\] ", "", answer.error)
    text = re.sub(r"(?<!\w)'[^']*'|\\\"[^\"]*\\\"|\"[^\"]*\"", "'..'", text)
    text = re.sub(r"^(.*?) is .*?; it must", r"\1 is ..; it must", text)
    text = re.sub(r"not JSON: .*", "not JSON: ..", text)
    return re.sub(r"-?\d+", "#", text)[:110]


@contextmanager
def good_streams(triton: Triton, report: Report) -> Iterator[None]:
    """Eight streams, begun again whenever they end; each must have the text it has undisturbed."""
    expected = [triton.text(**request) for request in GOOD]
    over = threading.Event()

    def go_on(index: int) -> tuple[int, int]:
        texts = []
        while not over.is_set():
            responses = triton.start(**GOOD[index]).all()
            texts.append("".join(response.error or response.text for response in responses))
        return len(texts), sum(text != expected[index] for text in texts)

    with ThreadPoolExecutor(len(GOOD)) as pool:
        streams = [pool.submit(go_on, index) for index in range(len(GOOD))]
        try:
            yield
        finally:
            over.set()
            for stream in streams:
                count, changed = stream.result()
                report.num_streams += count
                report.num_changed_streams += changed


def send_all(triton: Triton, seed: int, numbers: range, report: Report) -> None:
    lock = threading.Lock()

    def work(part: range) -> None:
        sender = Sender(triton)
        for number in part:
            case = fuzz_cases.make(seed, number)
            answer = sender.send(case)
            with lock:
                report.kinds[case.name] += 1
                report.errors[f"{answer.code}: {shape_of(answer)}"] += 1
                if is_wrong(case, answer):
                    report.wrong.append(f"{number}: {case.name}: {answer.code}: {answer.error[:300]}")
        sender.close()

    parts = [numbers[start::NUM_SENDERS] for start in range(NUM_SENDERS)]
    with ThreadPoolExecutor(NUM_SENDERS) as pool:
        list(pool.map(work, parts))


def settled_usage(triton: Triton) -> Usage:
    """What is held once nothing runs and every block is back."""
    triton.wait_until_idle()
    return usage(triton.server)


def run(triton: Triton, count: int, seed: int) -> Report:
    report = Report(count)
    started_s = time.monotonic()
    send_all(triton, seed, range(count, count + WARM_UP), Report(WARM_UP))
    with good_streams(triton, report):
        pass
    report.before = settled_usage(triton)
    with good_streams(triton, report):
        send_all(triton, seed, range(count), report)
    report.after = settled_usage(triton)
    report.seconds = time.monotonic() - started_s
    return report


def show(triton: Triton, seed: int, number: int) -> str:
    case = fuzz_cases.make(seed, number)
    answer = Sender(triton).send(case)
    return f"{case.name}\n{str(case.request or case.body)[:3000]}\n{answer}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="send this one and show it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        repository = copy_of_the_shipped_repository(Path(place) / "repository")
        with Server(repository, device="cpu", log_path=Path(place) / "server.log") as server:
            server.wait_ready(MODEL)
            triton = Triton(server)
            if options.only is not None:
                print(show(triton, options.seed, options.only))
                return 0
            report = run(triton, options.count, options.seed)
            print(report)
            return 1 if report.wrong or report.num_changed_streams else 0


if __name__ == "__main__":
    sys.exit(main())
