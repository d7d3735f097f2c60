"""Starts a real tritonserver over a model repository, and puts checkpoints into one. Never imports torch."""
