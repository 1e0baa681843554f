"""The wire formats, one file each, found by scan; every one has an encoder and a decoder."""
