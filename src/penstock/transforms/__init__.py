"""One file per transform, found by scan."""
