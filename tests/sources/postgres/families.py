"""Families of types, each with a way to make texts that the server accepts: hard ones, and others by chance."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from json import dumps
from typing import Any

Make = Callable[[random.Random], str]


@dataclass(frozen=True)
class Family:
    """A type of the server, and texts of its values."""

    type: str
    make: Make
    hard: tuple[str, ...] = ()

    def text(self, r: random.Random) -> str | None:
        """One text that is to become a value; the server may refuse it."""
        if r.random() < 0.05:
            return None
        return r.choice(self.hard) if self.hard and r.random() < 0.3 else self.make(r)


def whole(bits: int, signed: bool = True) -> Make:
    """Integers of every length."""

    def make(r: random.Random) -> str:
        n = r.getrandbits(r.randint(1, bits - signed))
        return str(-n - 1 if signed and r.random() < 0.5 else n)

    return make


def number(before: int, behind: int) -> Make:
    """Decimals with at most so many digits before and behind the point."""

    def make(r: random.Random) -> str:
        left = "".join(r.choices("0123456789", k=r.randint(1, before))) if before else "0"
        right = "".join(r.choices("0123456789", k=r.randint(0, behind)))
        return r.choice(("", "-")) + left + (f".{right}" if right else "")

    return make


def floating(bits: int) -> Make:
    """Floats by their bits, so that every exponent is met."""
    codes = ("<I", "<f") if bits == 32 else ("<Q", "<d")

    def make(r: random.Random) -> str:
        return repr(struct.unpack(codes[1], struct.pack(codes[0], r.getrandbits(bits)))[0])

    return make


def text(r: random.Random) -> str:
    """Characters of every plane but NUL and surrogates, many of them troublesome."""
    pools: list[Callable[[], str]] = [
        lambda: r.choice("\t\n\r\b\f\v\\'\"{},()[]<> N.x0"),
        lambda: chr(r.randint(1, 127)),
        lambda: chr(r.randint(128, 0xD7FF)),
        lambda: chr(r.randint(0xE000, 0x10FFFF)),
    ]
    return "".join(r.choice(pools)() for _ in range(r.choice((0, 1, 3, 20, 200))))


def day(r: random.Random) -> str:
    year = r.choice((r.randint(1, 4713), r.randint(1, 9999), r.randint(10_000, 5_874_896)))
    era = " BC" if year < 4713 and r.random() < 0.3 else ""
    return f"{year:04d}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}{era}"


def clock(r: random.Random) -> str:
    fraction = r.choice(("", f".{r.randint(0, 999_999):06d}", f".{r.randint(0, 9)}"))
    return f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}{fraction}"


def moment(r: random.Random) -> str:
    year = r.choice((r.randint(1, 4712), r.randint(1600, 2200), r.randint(10_000, 294_275)))
    era = " BC" if year < 4713 and r.random() < 0.3 else ""
    return f"{year:04d}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d} {clock(r)}{era}"


def instant(r: random.Random) -> str:
    at, _, era = moment(r).partition(" BC")
    zone = r.choice(("+00", "-11:30", "+14", "+05:45"))
    return f"{at}{zone} BC" if era == "" and r.random() < 0.2 and int(at.split("-")[0]) < 4713 else f"{at}{zone}"


def interval(r: random.Random) -> str:
    parts = [f"{r.randint(-99, 99)} {unit}" for unit in ("years", "mons", "days") if r.random() < 0.6]
    return " ".join([*parts, f"{r.choice(('', '-'))}{clock(r)}"])


def bits(r: random.Random) -> str:
    return "".join(r.choices("01", k=r.randint(0, 70)))


def document(r: random.Random) -> str:
    def value(depth: int) -> Any:
        if depth and r.random() < 0.4:
            return [value(depth - 1) for _ in range(r.randint(0, 3))]
        if depth and r.random() < 0.4:
            return {text(r): value(depth - 1) for _ in range(r.randint(0, 3))}
        return r.choice((None, True, 1, -0.5, 10**30, text(r)))

    return dumps(value(3), ensure_ascii=r.random() < 0.5)


def array(of: Make) -> Make:
    """Arrays of one or two dimensions, some with bounds of their own."""

    def make(r: random.Random) -> str:
        def line(n: int) -> str:
            return "{" + ",".join("NULL" if r.random() < 0.1 else _element(of(r)) for _ in range(n)) + "}"

        n, first = r.randint(1, 4), r.randint(-3, 7)
        if r.random() < 0.3:
            return "{" + ",".join(line(n) for _ in range(r.randint(1, 3))) + "}"
        return r.choice((line(n), line(0), f"[{first}:{first + n - 1}]={line(n)}"))

    return make


def _element(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def span(of: Make) -> Make:
    """Ranges between two values of the type, which the server sorts out or refuses: so both ends are the same, or open."""

    def make(r: random.Random) -> str:
        end = _element(of(r))
        return r.choice((f"[{end},{end}]", f"[{end},)", f"(,{end}]", "(,)", "empty"))

    return make


def address(r: random.Random) -> str:
    if r.random() < 0.5:
        return ".".join(str(r.randint(0, 255)) for _ in range(4)) + r.choice(("", f"/{r.randint(0, 32)}"))
    return ":".join(f"{r.getrandbits(16):x}" for _ in range(8)) + r.choice(("", f"/{r.randint(0, 128)}"))


def point(r: random.Random) -> str:
    return f"({floating(64)(r)},{r.randint(-9, 9)})".replace("nan", "0")


ENDS = ("infinity", "-infinity")
FAMILIES = (
    Family("boolean", lambda r: r.choice(("t", "f"))),
    Family("smallint", whole(16), ("-32768", "32767")),
    Family("integer", whole(32), ("-2147483648", "2147483647")),
    Family("bigint", whole(64), ("-9223372036854775808", "9223372036854775807")),
    Family("oid", whole(32, signed=False), ("4294967295",)),
    Family("xid8", whole(64, signed=False), ("18446744073709551615",)),
    Family("real", floating(32), ("-0", "1e-45", "3.4028235e+38", "NaN", *ENDS)),
    Family("double precision", floating(64), ("-0", "5e-324", "1.7976931348623157e308", "NaN", *ENDS)),
    Family("numeric", number(60, 60), ("NaN", "1e200", "1e-200", *ENDS)),
    Family("numeric(10,2)", number(8, 2), ("NaN", "-99999999.99", "0.00", "-0.01")),
    Family("numeric(38,10)", number(28, 10), ("NaN", "9" * 28 + "." + "9" * 10)),
    Family("numeric(38,38)", number(0, 38), ("0." + "9" * 38, "-0." + "0" * 37 + "1")),
    Family("numeric(7,-3)", number(9, 0)),
    Family("numeric(3,6)", lambda r: f"0.000{r.randint(0, 999):03d}"),
    Family("numeric(60,5)", number(50, 5)),
    Family("money", number(15, 2), ("-92233720368547758.08", "92233720368547758.07", "0", "-0.01")),
    Family("text", text, ("", "\\N", "NULL", "\\.")),
    Family("varchar(250)", text),
    Family("char(220)", text, ("",)),
    Family("bytea", lambda r: f"\\x{r.randbytes(r.choice((0, 1, 50))).hex()}"),
    Family("uuid", lambda r: f"{r.getrandbits(128):032x}"),
    Family("date", day, ("5874897-12-31", "4714-11-24 BC", "0001-01-01", "0001-12-31 BC", "2000-02-29", *ENDS)),
    Family("time", clock, ("24:00:00", "00:00:00", "23:59:59.999999")),
    Family("time(2)", clock, ("24:00:00",)),
    Family("timetz", lambda r: f"{clock(r)}{r.choice(('+00', '-15:59', '+05:45'))}", ("24:00:00+00",)),
    Family("timestamp", moment, ("294276-12-31 23:59:59.9", "294246-12-31 23:59:59.999999", "4714-11-24 00:00:00 BC", *ENDS)),
    Family("timestamp(3)", moment, ENDS),
    Family("timestamptz", instant, ("294276-12-31 23:59:59.999999+00", "4714-11-24 00:00:00+00 BC", *ENDS)),
    Family("interval", interval),
    Family("interval year to month", lambda r: f"{r.randint(-99, 99)} years {r.randint(-9, 9)} mons"),
    Family("bit varying", bits),
    Family("json", document, ("null", '{"a":1,"a":2}', '"\\ud83d\\u200b\\ude14"')),
    Family("jsonb", document, ("null", "1.10")),
    Family("inet", address),
    Family("macaddr", lambda r: f"{r.getrandbits(48):012x}"),
    Family("point", point),
    Family("integer[]", array(whole(32)), ("{}", "[0:1]={7,8}", "[-2:-1][3:3]={{1},{2}}", "{{1,2},{3,4}}")),
    Family("text[]", array(text), ("{}", "{NULL,\"NULL\",\"\"}")),
    Family("timestamptz[]", array(instant), ("{infinity}",)),
    Family("int4range", span(whole(20))),
    Family("tstzrange", span(instant)),
    Family("nummultirange", lambda r: "{" + span(number(9, 4))(r).replace("empty", "(,)") + "}"),
    Family("hstore", lambda r: f"{_element(text(r))}=>{r.choice(('NULL', _element(text(r))))}"),
    Family("vector", lambda r: f"[{r.randint(-9, 9)},{r.random()}]"),
    Family("mood", lambda r: r.choice(("sad", "it's ok", "a,b"))),
    Family("posint", whole(31, signed=False)),
    Family("cheap", number(5, 3)),
    Family("item", lambda r: f"({_element(text(r))},{r.randint(0, 9)},{r.choice(('', '1.50'))})"),
    Family("item[]", array(lambda r: f"({_element(text(r))},1,)")),
)  # fmt: skip
