"""The kinds of clients. All but OpenLoop are closed loops: the next request follows the end of the last."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from random import Random

import gevent
from gevent.pool import Pool
from locust import User, constant, constant_pacing, task
from locust.exception import StopUser

from loadtest import arrivals, options, traces
from loadtest.records import Outcome, Record
from loadtest.run import Run
from loadtest.stream import Connection
from loadtest.workloads import Conversation, Prompt, cancelled, completion


class Streaming(User):
    """What every user has: a connection and random numbers of its own. The rest is the test's."""

    abstract = True
    host = "127.0.0.1:8001"
    session: Run
    arguments: Namespace
    spawned = 0

    def on_start(self) -> None:
        Streaming.spawned += 1
        self.rng = Random(self.arguments.seed * 100_003 + Streaming.spawned)
        self.connection = self.connect()

    def on_stop(self) -> None:
        self.connection.hang_up()

    def connect(self) -> Connection:
        return Connection(str(self.host), self.arguments.model, self.arguments.timeout)

    def ask(self, prompt: Prompt) -> Record:
        """Sends one request; after a failed one this user rests, so that a dead server isn't hammered."""
        record = self.session.keep(self.connection.send(prompt))
        if record.outcome is Outcome.FAILED:
            gevent.sleep(1)
        return record

    def draw(self, workload: str | None = None) -> Prompt:
        workload = workload or self.arguments.workload
        return completion(workload, options.lengths(self.arguments, workload), self.rng)

    @property
    def stopping(self) -> bool:
        return self._state == "stopping"


class Completion(Streaming):
    """One prompt after the other."""

    weight = 6
    wait_time = constant(0)

    @task
    def complete(self) -> None:
        self.ask(self.draw())


class Chat(Streaming):
    """A conversation that grows turn by turn: all of it but the newest message is a prefix hit."""

    weight = 2
    wait_time = constant(0)

    @task
    def talk(self) -> None:
        lengths = options.lengths(self.arguments)
        talk = Conversation(self.rng, self.arguments.system_tokens, lengths, self.arguments.max_prompt)
        for prompt in talk.turns():
            record = self.ask(prompt)
            if record.outcome is not Outcome.OK or self.stopping:
                return
            talk.hear(record.text)
            gevent.sleep(self.rng.uniform(0.2, 1.0))


class Cancels(Streaming):
    """Clients that hang up before the first token or along the way."""

    weight = 1
    wait_time = constant(0)

    @task
    def hang_up(self) -> None:
        self.ask(cancelled(self.draw(), self.rng))


class LongPrompts(Streaming):
    """Long prompts that arrive together: what they do to the others' ITL is the question."""

    weight = 1

    def on_start(self) -> None:
        super().on_start()
        self.connections = [self.connect() for _ in range(self.arguments.burst_size)]

    def on_stop(self) -> None:
        for connection in self.connections:
            connection.hang_up()

    def wait_time(self) -> float:
        return float(constant_pacing(self.arguments.burst_every)(self))

    @task
    def burst(self) -> None:
        sends = [gevent.spawn(c.send, self.draw("long")) for c in self.connections]
        for send in gevent.iwait(sends):
            self.session.keep(send.get())


class OpenLoop(Streaming):
    """Sends each request when it is due: Poisson at `--rate`, or as `--trace` recorded it."""

    fixed_count = 1

    def on_start(self) -> None:
        super().on_start()
        self.pool = Pool(self.arguments.max_open)
        self.idle = [self.connection]

    def on_stop(self) -> None:
        self.pool.kill()
        for connection in self.idle:
            connection.hang_up()

    @task
    def replay(self) -> None:
        start_s = time.perf_counter()
        for at_s, prompt in self._schedule():
            self._wait_until(start_s + at_s)
            if self.stopping:
                break
            self.pool.spawn(self._send, prompt, start_s + at_s)
        self.pool.join()
        raise StopUser

    def _schedule(self) -> Iterator[tuple[float, Prompt]]:
        if self.arguments.trace:
            recorded = traces.read(self.arguments.trace)
            return traces.replay(recorded, options.fit(self.arguments), self.arguments.seed)
        return arrivals.poisson(self.arguments.rate, self.rng, self.draw)

    def _wait_until(self, due_s: float) -> None:
        while not self.stopping and (wait_s := due_s - time.perf_counter()) > 0:
            gevent.sleep(min(wait_s, 0.2))

    def _send(self, prompt: Prompt, due_s: float) -> None:
        connection = self.idle.pop() if self.idle else self.connect()
        self.session.keep(connection.send(prompt, due_s))
        self.idle.append(connection)
