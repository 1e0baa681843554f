"""Servers that come from wheels: a private PostgreSQL and a Java for Spark, for machines that have neither."""
