"""Load generators for a running server: what is asked (workloads, traces), when (arrivals), how it went
(records, report)."""
