"""Benchmarks: each prints a ratio against its floor or a peer measured in the same run."""
