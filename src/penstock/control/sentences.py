"""Validation errors as plain sentences: what is wrong at which path, and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from penstock.core.secret import has_reference, mask
from penstock.errors import Problem

_PLAIN = {
    "string_type": ("must be text", "Put the value in quotes."),
    "bool_type": ("must be true or false", "Write true or false."),
    "bool_parsing": ("must be true or false", "Write true or false."),
    "int_type": ("must be a whole number", "Write a whole number."),
    "int_parsing": ("must be a whole number", "Write a whole number."),
    "int_from_float": ("must be a whole number", "Write a whole number."),
    "float_type": ("must be a number", "Write a number."),
    "float_parsing": ("must be a number", "Write a number."),
    "tuple_type": ("must be a list", "Write [a, b] or one entry a line, each with a dash."),
    "list_type": ("must be a list", "Write [a, b] or one entry a line, each with a dash."),
    "dict_type": ("must be a mapping of keys to values", "Write keys and values, one a line, indented."),
    "model_type": ("must be a mapping of keys to values", "Write keys and values, one a line, indented."),
    "model_attributes_type": ("must be a mapping of keys to values", "Write keys and values, one a line, indented."),
    "string_too_short": ("must not be empty", "Give it a value."),
    "invalid_key": ("has a key that is not text", "Put the key in quotes."),
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be more than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be less than {}"),
    "too_short": ("min_length", "needs at least {} entry"),
    "string_too_long": ("max_length", "must not be longer than {} characters"),
}


def path_of(loc: Iterable[int | str], prefix: str = "") -> str:
    """A location as people write it: `destinations[1].options.acks`."""
    path = prefix
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else str(part)
    return path


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was most likely meant."""
    found = difflib.get_close_matches(word.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    return next((k for k in known if found and k.lower() == found[0]), None)


def suggest(word: str, known: Sequence[str], noun: str) -> str:
    """A remedy for a word that is not known."""
    near = nearest(word, known)
    return f"Did you mean `{near}`?" if near else f"Known {noun}: {', '.join(known) or 'none'}."


def problems_of(error: ValidationError, model: type[BaseModel], prefix: str = "", noun: str = "key") -> list[Problem]:
    """Every problem of a validation; values that still hold a reference are not judged."""
    details = error.errors(include_url=False)
    return [_problem(d, model, prefix, noun) for d in details if not has_reference(d["input"])]


def _problem(detail: ErrorDetails, model: type[BaseModel], prefix: str, noun: str) -> Problem:
    path, kind = path_of(detail["loc"], prefix), detail["type"]
    owner, field = _walk(model, detail["loc"])
    text = " ".join((field.description or "").split()) if field else ""
    if kind == "missing":
        return Problem(path, "is missing", f"Add it: {text}" if text else "Add it.")
    if kind == "extra_forbidden":
        known = list(owner.model_fields)
        return Problem(path, f"is not a known {noun}", suggest(str(detail["loc"][-1]), known, f"{noun}s"))
    message, remedy = _message(detail, field)
    return Problem(path, mask(message), remedy or f"Correct the value. {text}".rstrip())


def _message(detail: ErrorDetails, field: FieldInfo | None) -> tuple[str, str]:
    kind, context = detail["type"], detail.get("ctx") or {}
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _BOUNDS:
        name, sentence = _BOUNDS[kind]
        return sentence.format(context.get(name)), ""
    if kind == "literal_error":
        choices = _choices(field) or [str(context.get("expected"))]
        given = detail["input"]
        shown = (
            f"{given!r} is not one of {', '.join(choices)}" if isinstance(given, str) else f"must be one of {', '.join(choices)}"
        )
        near = nearest(given, choices) if isinstance(given, str) else None
        return shown, f"Did you mean `{near}`?" if near else f"Choose one of {', '.join(choices)}."
    if kind == "string_pattern_mismatch" and not detail["input"]:
        return "must not be empty", ""
    if kind == "string_pattern_mismatch":
        return "has characters that are not allowed here, or is too long", ""
    if kind == "value_error":
        return str(context.get("error", "is not a good value")), ""
    return (detail["msg"][:1].lower() + detail["msg"][1:]).replace("input should", "must"), ""


def _choices(field: FieldInfo | None) -> list[str]:
    return [a for a in get_args(field.annotation) if isinstance(a, str)] if field else []


def _walk(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[type[BaseModel], FieldInfo | None]:
    owner, field = model, None
    for part in loc:
        if isinstance(part, int):
            continue
        inner = _model_in(field.annotation) if field else None
        owner = inner or owner
        field = owner.model_fields.get(part)
        if field is None:
            break
    return owner, field


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a))), None)


def secret_fields(model: type[BaseModel]) -> frozenset[str]:
    """Options whose values are never shown."""
    return frozenset(
        name
        for name, field in model.model_fields.items()
        if isinstance(field.json_schema_extra, Mapping) and field.json_schema_extra.get("secret")
    )
