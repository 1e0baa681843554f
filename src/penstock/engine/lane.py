"""The lane: a standing Spark task that reads slices, decodes its bucket and lets the destination's writer stage or send it.

It connects to the driver, says which lane it is, gets its setup once and then descriptors, and answers each with a receipt or
an error. The end of the connection is the end of the lane. It imports no ledger and no control plane.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from penstock.core import connectors
from penstock.core.batch import Batch
from penstock.core.card import Kind
from penstock.core.epoch import Epoch
from penstock.destinations.base import Place, Writer
from penstock.engine.messages import receive, send
from penstock.errors import DestinationFailed, PenstockError
from penstock.journal.reader import SliceReader
from penstock.journal.record import unpack_slices
from penstock.observe.failpoints import reach
from penstock.sources.base import Completer, Decoder

PROGRESS = 1.0
"""Seconds between signs of life while a descriptor is worked on."""


def run_lane(assignment: dict[str, Any], indexes: Iterable[int]) -> Iterator[int]:
    """The task's body, for `mapPartitions`; returns when the driver says that it is over."""
    from pyspark import TaskContext

    index = next(iter(indexes))
    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    try:
        connection = Client(assignment["address"], "AF_UNIX", authkey=assignment["secret"])
    except OSError:
        # The driver has gone on without this attempt.
        return
    with connection:
        send(connection, {"job": assignment["job"], "lane": index, "attempt": attempt, "pid": os.getpid()})
        # Told to end, the task succeeds; hung up on, it fails, and Spark starts its next attempt.
        _serve(connection, receive(connection))
    yield index


def _serve(connection: Connection, setup: dict[str, Any]) -> None:
    work = Work(setup)
    try:
        while True:
            descriptor = receive(connection)
            if "end" in descriptor:
                return
            try:
                reply = {"receipt": work.do(descriptor, connection)}
            except PenstockError as error:
                reply = {"error": error.to_data()}
            except (EOFError, ConnectionError):
                raise
            except Exception as error:
                failure = DestinationFailed(f"a lane of {work.place.destination} failed: {type(error).__name__}: {error}")
                reply = {"error": failure.to_data()}
            send(connection, {"ask": descriptor["ask"], **reply})
    finally:
        work.close()


class Work:
    """What a lane keeps between epochs: reader, decoder, and the writer with its connections."""

    def __init__(self, setup: dict[str, Any]) -> None:
        card = connectors.find("destination", setup["destination"])
        self.place = Place(setup["flow"], setup["name"], Path(setup["staging"]))
        self._options = card.options.model_validate(setup["options"])
        self._writer: Writer = card.load("writer")(self.place, self._options)
        source = connectors.find("source", setup["source"])
        self._decoder: Decoder = source.load("decoder")()
        self._completer: Completer | None = None
        if setup.get("completion") is not None:
            self._completer = source.load("completer")(setup["completion"])
            self._decoder.gives_handles = True
        self._journal = SliceReader(Path(setup["journal"]))

    def do(self, descriptor: dict[str, Any], connection: Connection) -> dict[str, Any]:
        """One bucket of one epoch."""
        epoch = Epoch.from_data(descriptor["epoch"])
        slices = unpack_slices(descriptor["slices"])
        bucket = int(descriptor["bucket"])
        takes = self._options.takes  # type: ignore[attr-defined]
        batches = self._decoder.decode(self._journal, slices, bucket, epoch.buckets, lambda t: takes(t.schema, t.name))
        if self._completer is not None:
            batches = self._completer.complete(epoch, bucket, self._journal, slices, batches)
        reach("lane.before_write")
        receipt = self._writer.write(epoch, bucket, _signs_of_life(batches, connection, descriptor["ask"]))
        reach("lane.after_write")
        if self._completer is None:
            return dict(receipt)
        return {**receipt, "counts": {**(receipt.get("counts") or {}), **self._completer.counts}}

    def close(self) -> None:
        """Gives back connections and files."""
        self._writer.close()
        if self._completer is not None:
            self._completer.close()
        self._journal.close()


def _signs_of_life(batches: Iterator[Batch], connection: Connection, ask: int) -> Iterator[Batch]:
    said = time.monotonic()
    rows = 0
    for batch in batches:
        rows += len(batch)
        if time.monotonic() - said > PROGRESS:
            said = time.monotonic()
            send(connection, {"ask": ask, "progress": rows})
        yield batch


def warm() -> None:
    """Imports and compiles, before workers are forked, what their first epoch would otherwise wait for."""
    kinds: tuple[Kind, ...] = ("source", "destination", "format")
    for card in (card for kind in kinds for card in connectors.cards(kind).values()):
        for part in {"decoder", "completer", "writer", "format"} & card.parts.keys():
            try:
                module = importlib.import_module(card.load(part).__module__)
                getattr(module, "warm", lambda: None)()
            except Exception as error:
                # An extra that is not installed, or a connector that is broken, is the business of the flow that names it.
                sys.stderr.write(f"{card.kind} {card.name} could not be warmed: {type(error).__name__}: {error}\n")
