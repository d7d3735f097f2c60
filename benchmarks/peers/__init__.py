"""The same requests through other engines on this machine: `make bench-peers`."""
