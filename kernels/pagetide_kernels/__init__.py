"""Paged attention and its neighbours: one set of ops over CUDA, simulated CUDA and C++ on a CPU."""
