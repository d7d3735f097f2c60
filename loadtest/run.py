"""One run: its records, what the server said of itself meanwhile, and the verdict."""

from __future__ import annotations

from argparse import Namespace

import gevent
from locust.env import Environment

from loadtest import options, report
from loadtest.monitor import SERIES, Monitor
from loadtest.records import Outcome, Record


class Run:
    """From Locust's `test_start` to its `test_stop`. All of it happens on the one thread of gevent's loop."""

    def __init__(self, environment: Environment, arguments: Namespace) -> None:
        self.records: list[Record] = []
        self._environment = environment
        self._arguments = arguments
        self._monitor = Monitor(arguments.metrics_url, arguments.model)
        self._sampler = gevent.spawn(self._sample)

    def keep(self, record: Record) -> Record:
        """Notes a record for the report and in Locust's statistics."""
        self.records.append(record)
        self._environment.events.request.fire(
            request_type="gRPC" if record.outcome is Outcome.OK else record.outcome.value,
            name=record.workload,
            response_time=1000 * record.e2e_s,
            response_length=record.output_tokens,
            exception=RuntimeError(record.error) if record.outcome is Outcome.FAILED else None,
            context={},
        )
        if record.outcome is Outcome.OK:
            self._log_latencies(record)
        return record

    def finish(self) -> None:
        """Writes the report and prints its table."""
        self._sampler.kill()
        directory, slo = self._arguments.results, options.slo(self._arguments)
        summary = report.write(directory, self.records, slo)
        start_s = min((record.due_s for record in self.records), default=0.0)
        rows = ((round(at_s - start_s, 3), *values) for at_s, values in self._monitor.samples)
        report.write_csv(directory / "server.csv", ("at_s", *SERIES), rows)
        print(f"\n{report.table(summary, slo)}\n\nWritten to {directory}/\n")

    def fault(self) -> str:
        """Why the run counts as failed: a request failed, or none came to its end. Empty if it does not."""
        failed = [record for record in self.records if record.outcome is Outcome.FAILED]
        if failed:
            return f"{len(failed)} of {len(self.records)} requests failed; the first: {failed[0].error}"
        if not any(record.outcome is Outcome.OK for record in self.records):
            return "no request came to its end"
        return ""

    def _log_latencies(self, record: Record) -> None:
        """Straight into Locust's tables: as requests of their own they would count in its totals."""
        for name, seconds in (("TTFT", [record.ttft_s]), ("TPOT", [record.tpot_s]), ("ITL", record.itls_s)):
            entry = self._environment.stats.get(record.workload, name)
            for value in seconds:
                if value is not None:
                    entry.log(round(1000 * value), 0)

    def _sample(self) -> None:
        while True:
            self._monitor.sample()
            gevent.sleep(1)
