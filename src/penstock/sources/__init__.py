"""One folder per source, found by scan."""
