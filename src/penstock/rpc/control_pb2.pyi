import datetime

from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Failure(_message.Message):
    __slots__ = ("code", "detail", "remedy", "retry", "problems")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    code: str
    detail: str
    remedy: str
    retry: str
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    def __init__(self, code: _Optional[str] = ..., detail: _Optional[str] = ..., remedy: _Optional[str] = ..., retry: _Optional[str] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("path", "message", "remedy")
    PATH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    path: str
    message: str
    remedy: str
    def __init__(self, path: _Optional[str] = ..., message: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class FlowName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CreateFlow(_message.Message):
    __slots__ = ("definition", "start", "why", "key")
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    definition: _struct_pb2.Struct
    start: bool
    why: str
    key: str
    def __init__(self, definition: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., start: _Optional[bool] = ..., why: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class UpdateFlow(_message.Message):
    __slots__ = ("name", "definition", "why", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    definition: _struct_pb2.Struct
    why: str
    etag: str
    def __init__(self, name: _Optional[str] = ..., definition: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., why: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class ReconfigureFlow(_message.Message):
    __slots__ = ("name", "definition", "why", "etag", "wait")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    definition: _struct_pb2.Struct
    why: str
    etag: str
    wait: float
    def __init__(self, name: _Optional[str] = ..., definition: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., why: _Optional[str] = ..., etag: _Optional[str] = ..., wait: _Optional[float] = ...) -> None: ...

class CleanUpFlow(_message.Message):
    __slots__ = ("name", "remove_state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REMOVE_STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    remove_state: bool
    def __init__(self, name: _Optional[str] = ..., remove_state: _Optional[bool] = ...) -> None: ...

class CleanedUp(_message.Message):
    __slots__ = ("flow", "removed", "stays", "state_removed")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    STATE_REMOVED_FIELD_NUMBER: _ClassVar[int]
    flow: str
    removed: _containers.RepeatedCompositeFieldContainer[ServerObject]
    stays: _containers.RepeatedCompositeFieldContainer[ServerObject]
    state_removed: bool
    def __init__(self, flow: _Optional[str] = ..., removed: _Optional[_Iterable[_Union[ServerObject, _Mapping]]] = ..., stays: _Optional[_Iterable[_Union[ServerObject, _Mapping]]] = ..., state_removed: _Optional[bool] = ...) -> None: ...

class ServerObject(_message.Message):
    __slots__ = ("kind", "name", "why")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    why: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class DeleteFlow(_message.Message):
    __slots__ = ("name", "etag", "why", "cleanup")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    why: str
    cleanup: bool
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ..., why: _Optional[str] = ..., cleanup: _Optional[bool] = ...) -> None: ...

class ListFlows(_message.Message):
    __slots__ = ("after", "limit", "labels", "states")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    labels: str
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ..., labels: _Optional[str] = ..., states: _Optional[_Iterable[str]] = ...) -> None: ...

class Steer(_message.Message):
    __slots__ = ("name", "why", "wait")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    why: str
    wait: float
    def __init__(self, name: _Optional[str] = ..., why: _Optional[str] = ..., wait: _Optional[float] = ...) -> None: ...

class RevisionQuery(_message.Message):
    __slots__ = ("name", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: int
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class CheckpointQuery(_message.Message):
    __slots__ = ("name", "destination", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    destination: str
    limit: int
    def __init__(self, name: _Optional[str] = ..., destination: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class SchemaQuery(_message.Message):
    __slots__ = ("name", "table", "at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    table: str
    at: str
    def __init__(self, name: _Optional[str] = ..., table: _Optional[str] = ..., at: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("id", "flow", "at", "event", "who", "why", "generation")
    ID_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    id: int
    flow: str
    at: _timestamp_pb2.Timestamp
    event: str
    who: str
    why: str
    generation: int
    def __init__(self, id: _Optional[int] = ..., flow: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., event: _Optional[str] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class EventPage(_message.Message):
    __slots__ = ("events", "last")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    last: int
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., last: _Optional[int] = ...) -> None: ...

class ListEvents(_message.Message):
    __slots__ = ("flow", "after", "limit")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    flow: str
    after: int
    limit: int
    def __init__(self, flow: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("flow", "after", "seconds")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    flow: str
    after: int
    seconds: float
    def __init__(self, flow: _Optional[str] = ..., after: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class WatchItem(_message.Message):
    __slots__ = ("event", "flow")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    event: Event
    flow: Flow
    def __init__(self, event: _Optional[_Union[Event, _Mapping]] = ..., flow: _Optional[_Union[Flow, _Mapping]] = ...) -> None: ...

class FlowSummary(_message.Message):
    __slots__ = ("name", "state", "health", "reason", "wished", "wished_by", "wished_at", "worker", "labels", "etag", "lag_seconds")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WISHED_FIELD_NUMBER: _ClassVar[int]
    WISHED_BY_FIELD_NUMBER: _ClassVar[int]
    WISHED_AT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    health: str
    reason: str
    wished: str
    wished_by: str
    wished_at: _timestamp_pb2.Timestamp
    worker: str
    labels: _containers.ScalarMap[str, str]
    etag: str
    lag_seconds: float
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., health: _Optional[str] = ..., reason: _Optional[str] = ..., wished: _Optional[str] = ..., wished_by: _Optional[str] = ..., wished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., worker: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., etag: _Optional[str] = ..., lag_seconds: _Optional[float] = ...) -> None: ...

class FlowPage(_message.Message):
    __slots__ = ("flows", "next")
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    flows: _containers.RepeatedCompositeFieldContainer[FlowSummary]
    next: str
    def __init__(self, flows: _Optional[_Iterable[_Union[FlowSummary, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("name", "state", "health", "reason", "wished", "wished_by", "wished_at", "worker", "labels", "etag", "lag_seconds", "definition", "revision", "created_at", "created_by", "updated_at", "updated_by", "destinations", "journal", "acknowledgement", "source", "events", "applied", "loads")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WISHED_FIELD_NUMBER: _ClassVar[int]
    WISHED_BY_FIELD_NUMBER: _ClassVar[int]
    WISHED_AT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_BY_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    health: str
    reason: str
    wished: str
    wished_by: str
    wished_at: _timestamp_pb2.Timestamp
    worker: str
    labels: _containers.ScalarMap[str, str]
    etag: str
    lag_seconds: float
    definition: _struct_pb2.Struct
    revision: int
    created_at: _timestamp_pb2.Timestamp
    created_by: str
    updated_at: _timestamp_pb2.Timestamp
    updated_by: str
    destinations: _containers.RepeatedCompositeFieldContainer[Destination]
    journal: Journal
    acknowledgement: Acknowledgement
    source: _struct_pb2.Struct
    events: _containers.RepeatedCompositeFieldContainer[Event]
    applied: str
    loads: _containers.RepeatedCompositeFieldContainer[OpenLoad]
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., health: _Optional[str] = ..., reason: _Optional[str] = ..., wished: _Optional[str] = ..., wished_by: _Optional[str] = ..., wished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., worker: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., etag: _Optional[str] = ..., lag_seconds: _Optional[float] = ..., definition: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., revision: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_by: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_by: _Optional[str] = ..., destinations: _Optional[_Iterable[_Union[Destination, _Mapping]]] = ..., journal: _Optional[_Union[Journal, _Mapping]] = ..., acknowledgement: _Optional[_Union[Acknowledgement, _Mapping]] = ..., source: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., applied: _Optional[str] = ..., loads: _Optional[_Iterable[_Union[OpenLoad, _Mapping]]] = ...) -> None: ...

class OpenLoad(_message.Message):
    __slots__ = ("id", "kind", "state", "reason", "table_count", "percent", "rows", "rows_per_second", "seconds_left")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    state: str
    reason: str
    table_count: int
    percent: float
    rows: int
    rows_per_second: int
    seconds_left: float
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., table_count: _Optional[int] = ..., percent: _Optional[float] = ..., rows: _Optional[int] = ..., rows_per_second: _Optional[int] = ..., seconds_left: _Optional[float] = ...) -> None: ...

class Destination(_message.Message):
    __slots__ = ("name", "type", "state", "position", "lag_bytes", "lag_seconds", "rows_per_second", "rows", "attempts", "error", "counts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    state: str
    position: str
    lag_bytes: int
    lag_seconds: float
    rows_per_second: float
    rows: int
    attempts: int
    error: _struct_pb2.Struct
    counts: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., state: _Optional[str] = ..., position: _Optional[str] = ..., lag_bytes: _Optional[int] = ..., lag_seconds: _Optional[float] = ..., rows_per_second: _Optional[float] = ..., rows: _Optional[int] = ..., attempts: _Optional[int] = ..., error: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Journal(_message.Message):
    __slots__ = ("bytes", "mark", "oldest")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    mark: str
    oldest: str
    def __init__(self, bytes: _Optional[int] = ..., mark: _Optional[str] = ..., oldest: _Optional[str] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("told", "allowed", "held_by", "reason")
    TOLD_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    told: str
    allowed: str
    held_by: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, told: _Optional[str] = ..., allowed: _Optional[str] = ..., held_by: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Steered(_message.Message):
    __slots__ = ("flow", "wished", "by", "why", "changed", "state", "reason", "worker", "settled")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    WISHED_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    flow: str
    wished: str
    by: str
    why: str
    changed: bool
    state: str
    reason: str
    worker: str
    settled: bool
    def __init__(self, flow: _Optional[str] = ..., wished: _Optional[str] = ..., by: _Optional[str] = ..., why: _Optional[str] = ..., changed: _Optional[bool] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., worker: _Optional[str] = ..., settled: _Optional[bool] = ...) -> None: ...

class ReloadFlow(_message.Message):
    __slots__ = ("name", "wait")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    wait: float
    def __init__(self, name: _Optional[str] = ..., wait: _Optional[float] = ...) -> None: ...

class Reloaded(_message.Message):
    __slots__ = ("flow", "reloaded", "answer")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    RELOADED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    flow: str
    reloaded: bool
    answer: str
    def __init__(self, flow: _Optional[str] = ..., reloaded: _Optional[bool] = ..., answer: _Optional[str] = ...) -> None: ...

class RewindDestination(_message.Message):
    __slots__ = ("name", "destination", "to")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    name: str
    destination: str
    to: str
    def __init__(self, name: _Optional[str] = ..., destination: _Optional[str] = ..., to: _Optional[str] = ...) -> None: ...

class Rewound(_message.Message):
    __slots__ = ("flow", "destination", "before", "after")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    flow: str
    destination: str
    before: str
    after: str
    def __init__(self, flow: _Optional[str] = ..., destination: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ReleaseTable(_message.Message):
    __slots__ = ("name", "destination", "table", "skip_missed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SKIP_MISSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    destination: str
    table: str
    skip_missed: bool
    def __init__(self, name: _Optional[str] = ..., destination: _Optional[str] = ..., table: _Optional[str] = ..., skip_missed: _Optional[bool] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("flow", "destination", "table", "since", "missed", "skipped")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    flow: str
    destination: str
    table: str
    since: str
    missed: int
    skipped: bool
    def __init__(self, flow: _Optional[str] = ..., destination: _Optional[str] = ..., table: _Optional[str] = ..., since: _Optional[str] = ..., missed: _Optional[int] = ..., skipped: _Optional[bool] = ...) -> None: ...

class ResolveStagingTables(_message.Message):
    __slots__ = ("name", "destination", "tables", "wait")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    destination: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    wait: float
    def __init__(self, name: _Optional[str] = ..., destination: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., wait: _Optional[float] = ...) -> None: ...

class StagingResolved(_message.Message):
    __slots__ = ("flow", "answered", "tables")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    flow: str
    answered: bool
    tables: _containers.RepeatedCompositeFieldContainer[ResolvedTable]
    def __init__(self, flow: _Optional[str] = ..., answered: _Optional[bool] = ..., tables: _Optional[_Iterable[_Union[ResolvedTable, _Mapping]]] = ...) -> None: ...

class ResolvedTable(_message.Message):
    __slots__ = ("destination", "table_schema", "table", "outcome", "rows", "removed")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    destination: str
    table_schema: str
    table: str
    outcome: str
    rows: int
    removed: int
    def __init__(self, destination: _Optional[str] = ..., table_schema: _Optional[str] = ..., table: _Optional[str] = ..., outcome: _Optional[str] = ..., rows: _Optional[int] = ..., removed: _Optional[int] = ...) -> None: ...

class Revision(_message.Message):
    __slots__ = ("revision", "at", "who", "why", "definition")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    at: _timestamp_pb2.Timestamp
    who: str
    why: str
    definition: _struct_pb2.Struct
    def __init__(self, revision: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., definition: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class RevisionList(_message.Message):
    __slots__ = ("revisions",)
    REVISIONS_FIELD_NUMBER: _ClassVar[int]
    revisions: _containers.RepeatedCompositeFieldContainer[Revision]
    def __init__(self, revisions: _Optional[_Iterable[_Union[Revision, _Mapping]]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("destination", "position", "removed")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    destination: str
    position: str
    removed: bool
    def __init__(self, destination: _Optional[str] = ..., position: _Optional[str] = ..., removed: _Optional[bool] = ...) -> None: ...

class Epoch(_message.Message):
    __slots__ = ("destination", "epoch", "after", "position", "changes", "generation", "planned_at", "closed_at")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PLANNED_AT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_AT_FIELD_NUMBER: _ClassVar[int]
    destination: str
    epoch: int
    after: str
    position: str
    changes: int
    generation: int
    planned_at: _timestamp_pb2.Timestamp
    closed_at: _timestamp_pb2.Timestamp
    def __init__(self, destination: _Optional[str] = ..., epoch: _Optional[int] = ..., after: _Optional[str] = ..., position: _Optional[str] = ..., changes: _Optional[int] = ..., generation: _Optional[int] = ..., planned_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., closed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CheckpointList(_message.Message):
    __slots__ = ("checkpoints", "history")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    history: _containers.RepeatedCompositeFieldContainer[Epoch]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[Epoch, _Mapping]]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "type", "arrow")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    arrow: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., arrow: _Optional[str] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("table_schema", "table", "version", "since", "key", "columns")
    TABLE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    table_schema: str
    table: str
    version: int
    since: str
    key: _containers.RepeatedScalarFieldContainer[str]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, table_schema: _Optional[str] = ..., table: _Optional[str] = ..., version: _Optional[int] = ..., since: _Optional[str] = ..., key: _Optional[_Iterable[str]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class SchemaList(_message.Message):
    __slots__ = ("schemas",)
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    schemas: _containers.RepeatedCompositeFieldContainer[Schema]
    def __init__(self, schemas: _Optional[_Iterable[_Union[Schema, _Mapping]]] = ...) -> None: ...

class Examination(_message.Message):
    __slots__ = ("flow", "ok", "groups")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    flow: str
    ok: bool
    groups: _containers.RepeatedCompositeFieldContainer[FindingGroup]
    def __init__(self, flow: _Optional[str] = ..., ok: _Optional[bool] = ..., groups: _Optional[_Iterable[_Union[FindingGroup, _Mapping]]] = ...) -> None: ...

class FindingGroup(_message.Message):
    __slots__ = ("title", "ok", "findings")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    title: str
    ok: bool
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, title: _Optional[str] = ..., ok: _Optional[bool] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("subject", "ok", "detail", "remedy", "code")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    ok: bool
    detail: str
    remedy: str
    code: str
    def __init__(self, subject: _Optional[str] = ..., ok: _Optional[bool] = ..., detail: _Optional[str] = ..., remedy: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class ListLetters(_message.Message):
    __slots__ = ("flow", "destination", "table", "after", "limit")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    flow: str
    destination: str
    table: str
    after: int
    limit: int
    def __init__(self, flow: _Optional[str] = ..., destination: _Optional[str] = ..., table: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class LetterName(_message.Message):
    __slots__ = ("flow", "number")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    flow: str
    number: int
    def __init__(self, flow: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ChooseLetters(_message.Message):
    __slots__ = ("flow", "ids", "destination", "table", "all")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    flow: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    destination: str
    table: str
    all: bool
    def __init__(self, flow: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ..., destination: _Optional[str] = ..., table: _Optional[str] = ..., all: _Optional[bool] = ...) -> None: ...

class Letter(_message.Message):
    __slots__ = ("id", "destination", "table_schema", "table", "key_json", "op", "position", "ordinal", "state", "code", "reason", "remedy", "attempts", "set_aside_at", "change_json", "unrepresentable")
    ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_JSON_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_AT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_JSON_FIELD_NUMBER: _ClassVar[int]
    UNREPRESENTABLE_FIELD_NUMBER: _ClassVar[int]
    id: int
    destination: str
    table_schema: str
    table: str
    key_json: str
    op: str
    position: str
    ordinal: int
    state: str
    code: str
    reason: str
    remedy: str
    attempts: int
    set_aside_at: _timestamp_pb2.Timestamp
    change_json: str
    unrepresentable: _struct_pb2.Struct
    def __init__(self, id: _Optional[int] = ..., destination: _Optional[str] = ..., table_schema: _Optional[str] = ..., table: _Optional[str] = ..., key_json: _Optional[str] = ..., op: _Optional[str] = ..., position: _Optional[str] = ..., ordinal: _Optional[int] = ..., state: _Optional[str] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., remedy: _Optional[str] = ..., attempts: _Optional[int] = ..., set_aside_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., change_json: _Optional[str] = ..., unrepresentable: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class LetterPage(_message.Message):
    __slots__ = ("letters", "next")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[Letter]
    next: int
    def __init__(self, letters: _Optional[_Iterable[_Union[Letter, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class LettersDone(_message.Message):
    __slots__ = ("done", "left")
    DONE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    done: _containers.RepeatedScalarFieldContainer[int]
    left: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, done: _Optional[_Iterable[int]] = ..., left: _Optional[_Iterable[int]] = ...) -> None: ...

class StartBackfill(_message.Message):
    __slots__ = ("flow", "tables", "where", "destinations")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    flow: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    where: str
    destinations: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, flow: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., where: _Optional[str] = ..., destinations: _Optional[_Iterable[str]] = ...) -> None: ...

class BackfillName(_message.Message):
    __slots__ = ("flow", "number")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    flow: str
    number: int
    def __init__(self, flow: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Backfill(_message.Message):
    __slots__ = ("id", "kind", "state", "reason", "asked_by", "asked_at", "spec", "chunks", "read", "rows", "bytes", "percent", "delivered", "seconds", "rows_per_second", "bytes_per_second", "seconds_left", "table_count", "tables")
    class DeliveredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    TABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    state: str
    reason: str
    asked_by: str
    asked_at: _timestamp_pb2.Timestamp
    spec: _struct_pb2.Struct
    chunks: int
    read: int
    rows: int
    bytes: int
    percent: float
    delivered: _containers.ScalarMap[str, int]
    seconds: float
    rows_per_second: int
    bytes_per_second: int
    seconds_left: float
    table_count: int
    tables: _containers.RepeatedCompositeFieldContainer[TableProgress]
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., asked_by: _Optional[str] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., spec: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., chunks: _Optional[int] = ..., read: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., percent: _Optional[float] = ..., delivered: _Optional[_Mapping[str, int]] = ..., seconds: _Optional[float] = ..., rows_per_second: _Optional[int] = ..., bytes_per_second: _Optional[int] = ..., seconds_left: _Optional[float] = ..., table_count: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableProgress, _Mapping]]] = ...) -> None: ...

class TableProgress(_message.Message):
    __slots__ = ("table", "chunks", "read", "rows", "bytes", "percent", "delivered", "state")
    class DeliveredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class StateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    table: str
    chunks: int
    read: int
    rows: int
    bytes: int
    percent: float
    delivered: _containers.ScalarMap[str, int]
    state: _containers.ScalarMap[str, str]
    def __init__(self, table: _Optional[str] = ..., chunks: _Optional[int] = ..., read: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., percent: _Optional[float] = ..., delivered: _Optional[_Mapping[str, int]] = ..., state: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ListBackfills(_message.Message):
    __slots__ = ("name", "before", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    before: int
    limit: int
    def __init__(self, name: _Optional[str] = ..., before: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class BackfillList(_message.Message):
    __slots__ = ("backfills", "next")
    BACKFILLS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    backfills: _containers.RepeatedCompositeFieldContainer[Backfill]
    next: int
    def __init__(self, backfills: _Optional[_Iterable[_Union[Backfill, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class Publication(_message.Message):
    __slots__ = ("name", "owner", "made_by_flow", "all_tables", "schemas", "operations", "via_root", "tables")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FLOW_FIELD_NUMBER: _ClassVar[int]
    ALL_TABLES_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    VIA_ROOT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    made_by_flow: bool
    all_tables: bool
    schemas: _containers.RepeatedScalarFieldContainer[str]
    operations: _containers.RepeatedScalarFieldContainer[str]
    via_root: bool
    tables: _containers.RepeatedCompositeFieldContainer[PublishedTable]
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., made_by_flow: _Optional[bool] = ..., all_tables: _Optional[bool] = ..., schemas: _Optional[_Iterable[str]] = ..., operations: _Optional[_Iterable[str]] = ..., via_root: _Optional[bool] = ..., tables: _Optional[_Iterable[_Union[PublishedTable, _Mapping]]] = ...) -> None: ...

class PublishedTable(_message.Message):
    __slots__ = ("table_schema", "table", "by", "columns", "filter", "asked")
    TABLE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    table_schema: str
    table: str
    by: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    filter: str
    asked: bool
    def __init__(self, table_schema: _Optional[str] = ..., table: _Optional[str] = ..., by: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., filter: _Optional[str] = ..., asked: _Optional[bool] = ...) -> None: ...

class PublicationTables(_message.Message):
    __slots__ = ("flow", "tables")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    flow: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, flow: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class AddTables(_message.Message):
    __slots__ = ("flow", "tables", "snapshot")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    flow: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    snapshot: bool
    def __init__(self, flow: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., snapshot: _Optional[bool] = ...) -> None: ...

class SyncPublication(_message.Message):
    __slots__ = ("flow", "mode", "dry_run")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    flow: str
    mode: str
    dry_run: bool
    def __init__(self, flow: _Optional[str] = ..., mode: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("table_schema", "table", "partitioned", "key", "identity", "rows", "bytes", "published", "asked", "problem", "remedy")
    TABLE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONED_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    table_schema: str
    table: str
    partitioned: bool
    key: _containers.RepeatedScalarFieldContainer[str]
    identity: str
    rows: int
    bytes: int
    published: bool
    asked: bool
    problem: str
    remedy: str
    def __init__(self, table_schema: _Optional[str] = ..., table: _Optional[str] = ..., partitioned: _Optional[bool] = ..., key: _Optional[_Iterable[str]] = ..., identity: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., published: _Optional[bool] = ..., asked: _Optional[bool] = ..., problem: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class CandidateList(_message.Message):
    __slots__ = ("publication", "tables", "notes")
    PUBLICATION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    publication: str
    tables: _containers.RepeatedCompositeFieldContainer[Candidate]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, publication: _Optional[str] = ..., tables: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class PublicationChange(_message.Message):
    __slots__ = ("publication", "dry_run", "created", "added", "dropped", "unchanged", "notes", "backfill")
    PUBLICATION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    BACKFILL_FIELD_NUMBER: _ClassVar[int]
    publication: str
    dry_run: bool
    created: bool
    added: _containers.RepeatedScalarFieldContainer[str]
    dropped: _containers.RepeatedScalarFieldContainer[str]
    unchanged: _containers.RepeatedScalarFieldContainer[str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    backfill: int
    def __init__(self, publication: _Optional[str] = ..., dry_run: _Optional[bool] = ..., created: _Optional[bool] = ..., added: _Optional[_Iterable[str]] = ..., dropped: _Optional[_Iterable[str]] = ..., unchanged: _Optional[_Iterable[str]] = ..., notes: _Optional[_Iterable[str]] = ..., backfill: _Optional[int] = ...) -> None: ...

class SlotName(_message.Message):
    __slots__ = ("flow", "slot")
    FLOW_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    flow: str
    slot: str
    def __init__(self, flow: _Optional[str] = ..., slot: _Optional[str] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("name", "own", "kind", "plugin", "database", "temporary", "active", "pid", "reader", "confirmed", "restart", "lag_bytes", "retained_bytes", "safe_wal_size", "status", "two_phase", "failover", "synced", "idle_since", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETAINED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAFE_WAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TWO_PHASE_FIELD_NUMBER: _ClassVar[int]
    FAILOVER_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    IDLE_SINCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    own: bool
    kind: str
    plugin: str
    database: str
    temporary: bool
    active: bool
    pid: int
    reader: str
    confirmed: str
    restart: str
    lag_bytes: int
    retained_bytes: int
    safe_wal_size: int
    status: str
    two_phase: bool
    failover: bool
    synced: bool
    idle_since: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., own: _Optional[bool] = ..., kind: _Optional[str] = ..., plugin: _Optional[str] = ..., database: _Optional[str] = ..., temporary: _Optional[bool] = ..., active: _Optional[bool] = ..., pid: _Optional[int] = ..., reader: _Optional[str] = ..., confirmed: _Optional[str] = ..., restart: _Optional[str] = ..., lag_bytes: _Optional[int] = ..., retained_bytes: _Optional[int] = ..., safe_wal_size: _Optional[int] = ..., status: _Optional[str] = ..., two_phase: _Optional[bool] = ..., failover: _Optional[bool] = ..., synced: _Optional[bool] = ..., idle_since: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class SlotList(_message.Message):
    __slots__ = ("own", "slots")
    OWN_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    own: str
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    def __init__(self, own: _Optional[str] = ..., slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ...) -> None: ...

class SlotDropped(_message.Message):
    __slots__ = ("slot", "lost")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    lost: str
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., lost: _Optional[str] = ...) -> None: ...

class ConnectorName(_message.Message):
    __slots__ = ("kind", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Connector(_message.Message):
    __slots__ = ("kind", "name", "summary", "extra", "capabilities", "options")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    summary: str
    extra: str
    capabilities: _struct_pb2.Struct
    options: _struct_pb2.Struct
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., summary: _Optional[str] = ..., extra: _Optional[str] = ..., capabilities: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., options: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ConnectorList(_message.Message):
    __slots__ = ("connectors",)
    CONNECTORS_FIELD_NUMBER: _ClassVar[int]
    connectors: _containers.RepeatedCompositeFieldContainer[Connector]
    def __init__(self, connectors: _Optional[_Iterable[_Union[Connector, _Mapping]]] = ...) -> None: ...

class ValidateDefinition(_message.Message):
    __slots__ = ("definition",)
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    definition: _struct_pb2.Struct
    def __init__(self, definition: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Validation(_message.Message):
    __slots__ = ("valid", "problems", "notes")
    VALID_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    valid: bool
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    notes: _containers.RepeatedCompositeFieldContainer[Problem]
    def __init__(self, valid: _Optional[bool] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., notes: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ...) -> None: ...

class TokenCreation(_message.Message):
    __slots__ = ("name", "role")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class TokenName(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: str
    def __init__(self, number: _Optional[str] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "name", "role", "created_at", "created_by", "revoked_at", "token")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    role: str
    created_at: _timestamp_pb2.Timestamp
    created_by: str
    revoked_at: _timestamp_pb2.Timestamp
    token: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., role: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_by: _Optional[str] = ..., revoked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., token: _Optional[str] = ...) -> None: ...

class TokenList(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class AuditQuery(_message.Message):
    __slots__ = ("before", "limit", "flow")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    before: int
    limit: int
    flow: str
    def __init__(self, before: _Optional[int] = ..., limit: _Optional[int] = ..., flow: _Optional[str] = ...) -> None: ...

class AuditRecord(_message.Message):
    __slots__ = ("id", "at", "who", "role", "action", "flow", "outcome", "detail")
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    id: int
    at: _timestamp_pb2.Timestamp
    who: str
    role: str
    action: str
    flow: str
    outcome: str
    detail: str
    def __init__(self, id: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., who: _Optional[str] = ..., role: _Optional[str] = ..., action: _Optional[str] = ..., flow: _Optional[str] = ..., outcome: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class AuditPage(_message.Message):
    __slots__ = ("records", "next")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[AuditRecord]
    next: int
    def __init__(self, records: _Optional[_Iterable[_Union[AuditRecord, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class ServerState(_message.Message):
    __slots__ = ("version", "runner", "launcher", "spark", "flows")
    class FlowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    SPARK_FIELD_NUMBER: _ClassVar[int]
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    version: str
    runner: str
    launcher: str
    spark: str
    flows: _containers.ScalarMap[str, int]
    def __init__(self, version: _Optional[str] = ..., runner: _Optional[str] = ..., launcher: _Optional[str] = ..., spark: _Optional[str] = ..., flows: _Optional[_Mapping[str, int]] = ...) -> None: ...
