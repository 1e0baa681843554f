"""The http destination's writer beside the bare client library that posts the same bodies, in one run: requests/s and CPU."""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pycurl

from penstock.core.batch import Batch, Op
from penstock.core.epoch import Epoch
from penstock.core.schema import Column, TableSchema
from penstock.destinations.base import Place
from penstock.destinations.http.options import HttpOptions
from penstock.destinations.http.request import Requests
from penstock.destinations.http.wave import Wave
from penstock.destinations.http.writer import HttpWriter

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
TABLE = TableSchema(
    "public",
    "work",
    (
        Column("id", pa.int64(), "bigint"),
        Column("a", pa.int32(), "integer"),
        Column("t", pa.string(), "text"),
        Column("num", pa.decimal128(12, 2), "numeric(12,2)"),
        Column("f", pa.float64(), "double precision"),
        Column("t2", pa.string(), "text"),
        Column("ts", pa.timestamp("us", "UTC"), "timestamp with time zone"),
        Column("ok", pa.bool_(), "boolean"),
    ),
    ("id",),
    1,
)
EPOCH = Epoch("bench", "http", "bench", 1, 0, 1000, 1, 1)


class Answering(asyncio.Protocol):
    """Answers as soon as a request is complete, and looks at nothing else."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._waiting = transport, b""

    def data_received(self, data: bytes) -> None:
        data = self._waiting + data
        while (head := data.find(b"\r\n\r\n")) >= 0:
            length = data.lower().find(b"content-length:", 0, head)
            end = head + 4 + int(data[length + 15 : data.find(b"\r", length)])
            if len(data) < end:
                break
            data = data[end:]
            self._transport.write(ANSWER)
        self._waiting = data


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def make_batch(rows: int) -> Batch:
    numbers = np.arange(rows)
    texts = [f"customer name {n}" for n in range(rows)]
    columns = [
        pa.array(numbers),
        pa.array(numbers % 1000, pa.int32()),
        pa.array(texts),
        pa.array(numbers % 100_000, pa.int64()).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        pa.array(numbers * 1.5),
        pa.array([f"some longer description text for row {n} padpadpadpad" for n in range(rows)]),
        pa.array(numbers * 1_000_000, pa.timestamp("us", "UTC")),
        pa.array(numbers % 2 == 0),
    ]
    return Batch(
        table=TABLE,
        rows=pa.RecordBatch.from_arrays(columns, schema=TABLE.arrow),
        op=pa.array(np.full(rows, int(Op.INSERT), np.uint8)),
        position=pa.array(np.full(rows, 100)),
        ordinal=pa.array(numbers + 1),
        xid=pa.array(np.full(rows, 7)),
        committed_at=pa.array(np.full(rows, 10**15), pa.timestamp("us", "UTC")),
        unchanged=(None,) * len(TABLE.columns),
        image=pa.array(np.zeros(rows, np.uint8)),
    )


def post(options: HttpOptions, requests: Iterator[tuple[list[str], bytes]]) -> None:
    """The floor: libcurl's own loop, nothing looked at but the status."""
    multi, free, flying = pycurl.CurlMulti(), [pycurl.Curl() for _ in range(options.concurrency)], 0
    for curl in free:
        curl.setopt(pycurl.URL, options.address)
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.WRITEFUNCTION, lambda piece: None)
    more = True
    while more or flying:
        while more and free:
            request = next(requests, None)
            more = request is not None
            if request is not None:
                curl = free.pop()
                curl.setopt(pycurl.HTTPHEADER, request[0])
                curl.setopt(pycurl.POSTFIELDS, request[1])
                multi.add_handle(curl)
                flying += 1
        multi.perform()
        _, good, bad = multi.info_read()
        assert not bad
        for curl in good:
            assert curl.getinfo(pycurl.RESPONSE_CODE) == 200
            multi.remove_handle(curl)
            free.append(curl)
            flying -= 1
        if not good and flying:
            multi.select(1.0)


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds and CPU seconds of this process."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(url: str, batch: Batch, mode: str) -> None:
    options = HttpOptions.model_validate({"url": url, "batch_mode": mode})
    maker = Requests(options)
    wave = Wave([batch], EPOCH.source, maker.end)
    bodies = [(cut, maker.body(wave, cut)) for cut in maker.cut(wave, np.arange(len(wave)))]
    made = [(maker.headers(wave, cut, body), body) for cut, body in bodies]
    writer = HttpWriter(Place("bench", "http", Path("/nowhere")), options)
    writer.write(EPOCH, 0, iter([batch.filter(pa.array(np.arange(len(batch)) < 100))]))
    floor = measured(lambda: post(options, iter(made)))
    own = measured(lambda: writer.write(EPOCH, 0, iter([batch])))
    writer.close()
    for name, (seconds, cpu) in (("bare libcurl", floor), ("http destination", own)):
        print(
            f"{mode:5} {name:16} {len(made) / seconds:8,.0f} requests/s {len(batch) / seconds:9,.0f} changes/s"
            f" {1e6 * cpu / len(made):7,.0f} CPU µs/request {len(batch) / cpu:9,.0f} changes/CPU s",
            flush=True,
        )
    print(f"{mode:5} destination / bare: {own[0] / floor[0]:.2f} of the time, {own[1] / floor[1]:.2f} of the CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve())
    with subprocess.Popen([sys.executable, "-m", "bench.http_sink", "--serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/"
        try:
            for mode in ("none", "array"):
                batch = make_batch(given.rows if mode == "none" else 10 * given.rows)
                for _ in range(given.rounds):
                    compare(url, batch, mode)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
