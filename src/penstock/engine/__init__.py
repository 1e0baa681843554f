"""The engine runs: the Spark session, lanes, epochs and the worker process."""
