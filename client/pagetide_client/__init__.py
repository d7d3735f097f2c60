"""Streaming client and command line for Pagetide. Needs no torch."""
