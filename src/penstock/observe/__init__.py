"""Logs and failpoints: what operators and tests see of a running process."""
