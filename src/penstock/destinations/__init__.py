"""One folder or file per destination, found by scan."""
