"""Options described for people: name, type, default and help of each, from the model that also checks them."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from penstock.core.options import format_duration, format_size, parse_duration, parse_size

_WORDS = {str: "text", bool: "true or false", int: "whole number", float: "number"}


@dataclass(frozen=True)
class OptionHelp:
    """One option, ready to be shown."""

    name: str
    type: str
    required: bool
    default: str
    help: str
    secret: bool

    def to_data(self) -> dict[str, Any]:
        """Plain data for an answer."""
        return {
            "name": self.name,
            "type": self.type,
            "required": self.required,
            "default": None if self.required else self.default,
            "help": self.help,
            "secret": self.secret,
        }


def describe(model: type[BaseModel]) -> Iterator[OptionHelp]:
    """Every option of the model, in the order in which it was declared."""
    for name, field in model.model_fields.items():
        kind = _type(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
        extra = field.json_schema_extra
        secret = isinstance(extra, Mapping) and bool(extra.get("secret"))
        required = field.is_required()
        yield OptionHelp(
            name, kind, required, "" if required else _default(field, kind), " ".join((field.description or "").split()), secret
        )


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        functions = [m.func for m in arguments[1:] if isinstance(m, BeforeValidator)]
        if parse_duration in functions:
            return "duration"
        return "size" if parse_size in functions else _type(arguments[0])
    if origin is Literal:
        return " | ".join(str(a) for a in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(_type(a) for a in arguments if a is not type(None))
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}" if arguments else "list"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "mapping"
    return _WORDS.get(annotation, "value")


def _default(field: FieldInfo, kind: str) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if kind == "duration":
        return format_duration(value)
    if kind == "size":
        return format_size(value).replace(".0 ", " ").replace(" ", "")
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
