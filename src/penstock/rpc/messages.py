"""Plain data as messages and back: a field that is not set is None, a Struct is a dict, a time is a time.

A field `x_json` of a message is `x` in plain data.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from penstock.rpc import control_pb2

PACKAGE = control_pb2.DESCRIPTOR.package
EXACT = 1 << 53
"""The greatest whole number up to which a Struct holds every one."""
_JSON = "_json"


def methods() -> Iterator[tuple[str, MethodDescriptor]]:
    """Every method of every service, by its name: `Flows.Create`."""
    for service in control_pb2.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            yield f"{service.name}.{method.name}", method


def kind_of(descriptor: Any) -> type[Message]:
    """The class of such messages."""
    return GetMessageClass(descriptor)


def pack(descriptor: Any, data: Mapping[str, Any]) -> Message:
    """Plain data as a message; what the message has no field for is left out."""
    message = kind_of(descriptor)()
    _fill(message, data)
    return message


def unpack(message: Message) -> dict[str, Any]:
    """A message as plain data, with every field that it could have."""
    return {_name(field): _value(message, field) for field in message.DESCRIPTOR.fields}


def _fill(message: Any, data: Mapping[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        value = data.get(_name(field))
        if value is None:
            continue
        if field.name.endswith(_JSON):
            setattr(message, field.name, json.dumps(value, ensure_ascii=False, default=str))
        elif _is_map(field):
            getattr(message, field.name).update(value)
        elif field.is_repeated and field.message_type is not None:
            for one in value:
                _fill(getattr(message, field.name).add(), one)
        elif field.is_repeated:
            getattr(message, field.name).extend(value)
        elif field.message_type is not None:
            _fill_message(getattr(message, field.name), value)
        else:
            setattr(message, field.name, value)


def _fill_message(message: Any, value: Any) -> None:
    message.SetInParent()
    if isinstance(message, Timestamp):
        message.FromDatetime(value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(value))
    elif isinstance(message, Struct):
        message.update(_exact(value))
    else:
        _fill(message, value)


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        return dict(value)
    if field.is_repeated:
        return [unpack(one) for one in value] if field.message_type is not None else list(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.name.endswith(_JSON):
        return json.loads(value)
    if isinstance(value, Timestamp):
        return value.ToDatetime(dt.UTC)
    if isinstance(value, Struct):
        return {key: _plain(inner) for key, inner in value.fields.items()}
    return unpack(value) if isinstance(value, Message) else value


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {key: _plain(inner) for key, inner in value.struct_value.fields.items()}
    if kind == "list_value":
        return [_plain(inner) for inner in value.list_value.values]
    if kind == "number_value":
        # A Struct knows no whole numbers, and definitions hardly any others.
        return int(value.number_value) if value.number_value.is_integer() else value.number_value
    return getattr(value, kind) if kind not in (None, "null_value") else None


def _exact(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _exact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(inner) for inner in value]
    # A number that would not arrive as it is travels as its text, which every option that takes a number reads as one.
    if isinstance(value, int) and abs(value) > EXACT:
        return str(value)
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _name(field: Any) -> str:
    return str(field.name).removesuffix(_JSON)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
