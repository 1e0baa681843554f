"""The database of everything that must survive: flows, checkpoints, epochs."""
