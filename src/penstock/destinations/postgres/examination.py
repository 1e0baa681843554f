"""What `doctor` is told of the target: version, writability and rights, each with what mends it."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.finding import Finding
from penstock.destinations.postgres.bookkeeping import HOME
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.postgres.session import Connection, execute
from penstock.destinations.sql import quoted
from penstock.errors import DestinationFailed, DestinationRefused, DestinationUnwritable

OLDEST = 140000

_LOOK = """
SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only'),
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY')
"""
_SCHEMA = """
SELECT pg_catalog.has_schema_privilege(n.oid, 'CREATE') AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
  FROM pg_catalog.pg_namespace n WHERE n.nspname = $1
"""


def examine(connection: Connection, options: PostgresOptions) -> list[Finding]:
    """The findings, good and bad."""
    return list(_findings(connection, options))


def _findings(connection: Connection, options: PostgresOptions) -> Iterator[Finding]:
    info = connection.info
    subject = f"postgres: {info.host}:{info.port}, database {info.dbname}"
    version = info.server_version
    if version < OLDEST:
        yield _bad(subject, f"PostgreSQL {version // 10000} is too old", "Use PostgreSQL 14 or newer.", DestinationFailed.code)
        return
    row = execute(connection, _LOOK).fetchone()
    assert row is not None
    recovering, read_only, creates, temporary = row
    if recovering or read_only == "on":
        state = "a standby" if recovering else "read-only"
        remedy = "Point the dsn at the primary: name all hosts and add target_session_attrs=read-write."
        yield _bad(subject, f"the server is {state} and takes no writes", remedy, DestinationUnwritable.code)
        return
    yield Finding(subject, True, f"PostgreSQL {version // 10000}, takes writes")
    user, database = quoted(info.user), quoted(info.dbname)
    for schema in _schemas(options):
        found = execute(connection, _SCHEMA, [schema]).fetchone()
        if found is None and not creates:
            remedy = f"CREATE SCHEMA {quoted(schema)} AUTHORIZATION {user}; or GRANT CREATE ON DATABASE {database} TO {user};"
            yield _bad(f"schema {schema}", "is missing, and the role may not create it", remedy, DestinationRefused.code)
        elif found is not None and not found[0]:
            remedy = f"GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {user};"
            yield _bad(f"schema {schema}", "the role may not create tables in it", remedy, DestinationRefused.code)
        else:
            yield Finding(f"schema {schema}", True, "will be created" if found is None else "takes tables")
    if not temporary:
        remedy = f"GRANT TEMPORARY ON DATABASE {database} TO {user};"
        yield _bad("temporary tables", "the role may not create any", remedy, DestinationRefused.code)


def _schemas(options: PostgresOptions) -> list[str]:
    """The schemas that are known without the source's tables."""
    names = [HOME, options.schema_template]
    if options.batch_mode == "staging" and options.staging_schema is not None:
        names.append(options.staging_schema)
    return [name for name in dict.fromkeys(names) if "{" not in name]


def _bad(subject: str, detail: str, remedy: str, code: str) -> Finding:
    return Finding(subject, False, detail, remedy, code)
