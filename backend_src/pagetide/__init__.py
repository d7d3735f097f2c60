"""Pagetide: the engine behind a Triton Python-backend model that serves large language models."""

__version__ = "0.1.0"
