"""The fold that table destinations share: changes of an epoch down to the last state per key."""
