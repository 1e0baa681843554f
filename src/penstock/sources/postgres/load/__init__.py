"""Tables read beside the log: how they are cut into chunks, in which snapshot, and what the files of chunks hold."""
