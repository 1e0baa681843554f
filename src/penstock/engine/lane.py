"""The lane: a standing Spark task that reads slices, decodes its bucket and lets the destination's writer stage or send it.

It connects to the driver, says which lane it is, gets its setup once and then descriptors, and answers each with a receipt or
an error. The end of the connection is the end of the lane. It imports no ledger and no control plane.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core import connectors
from penstock.core.batch import Batch
from penstock.core.card import Kind
from penstock.core.clock import clock
from penstock.core.epoch import Epoch
from penstock.core.packing import unpack
from penstock.destinations.aside import Aside
from penstock.destinations.base import Place, Writer
from penstock.engine.messages import receive, send
from penstock.errors import DestinationFailed, ExtraMissing, PenstockError
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice, unpack_slices
from penstock.observe.failpoints import reach
from penstock.sources.base import Completer, Decoder

PROGRESS = 1.0
"""Seconds between signs of life while a descriptor is worked on."""
LISTEN = 0.05
"""Seconds between looks at what the driver has said meanwhile."""


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
            if "ask" not in descriptor:
                # A word about the lease that came after the answer.
                continue
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
        rules = setup.get("dead_letter") or {"enabled": False, "later": "follow"}
        self._writer.sets_aside = bool(rules["enabled"])
        self._waits = rules["later"] == "wait"
        source = connectors.find("source", setup["source"])
        self._decoder: Decoder = source.load("decoder")()
        self._decoder.recipe = setup.get("decoding")
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
        leash = _Leash(connection, descriptor["ask"], float(descriptor.get("deadline", math.inf)))
        self._writer.progress = leash.check
        batches = self._decoded(epoch, bucket, slices)
        if self._completer is not None:
            batches = self._completer.complete(epoch, bucket, self._journal, slices, batches)
        aside = self._aside(descriptor.get("aside"), epoch, bucket, slices)
        if aside is not None:
            replayed = [unpack(content) for content in descriptor["aside"]["letters"]]
            batches = aside.passed(itertools.chain(replayed, batches))
        self._writer.aside = aside if self._writer.sets_aside else None
        reach("lane.before_write")
        leash.check()
        receipt = dict(self._writer.write(epoch, bucket, leash.follow(batches)))
        reach("lane.after_write")
        if aside is not None:
            if refused := receipt.get("refused"):
                aside.fetch(refused, itertools.chain(replayed, self._decoded(epoch, bucket, slices)))
            receipt["letters"] = aside.letters
            receipt["truncated"] = [[*name, *at] for name, at in aside.truncated.items()]
        if self._completer is not None:
            receipt["counts"] = {**(receipt.get("counts") or {}), **self._completer.counts}
        return receipt

    def _decoded(self, epoch: Epoch, bucket: int, slices: Sequence[Slice]) -> Iterator[Batch]:
        takes = self._options.takes  # type: ignore[attr-defined]
        return self._decoder.decode(self._journal, slices, bucket, epoch.buckets, lambda t: takes(t.schema, t.name))

    def _aside(self, given: dict[str, Any] | None, epoch: Epoch, bucket: int, slices: Sequence[Slice]) -> Aside | None:
        """Where this bucket's refused changes go, and those that wait; None when there can be none."""
        if given is None:
            return None
        parked = {(schema, table): pa.array(keys, pa.large_string()) for schema, table, keys in given["parked"]}
        applies = getattr(self._options, "on_truncate", "apply") == "apply"
        aside = Aside(parked, waits=self._waits, room=given["room"], truncates=applies)
        if given["refused"]:
            replayed = [unpack(content) for content in given["letters"]]
            aside.condemn(given["refused"], itertools.chain(replayed, self._decoded(epoch, bucket, slices)))
        return aside

    def close(self) -> None:
        """Gives back connections and files."""
        self._writer.close()
        if self._completer is not None:
            self._completer.close()
        self._journal.close()


class _Leash:
    """Ties one asking's work to its driver: signs of life go out, and nothing is written once the driver's lease is over."""

    def __init__(self, connection: Connection, ask: int, deadline: float) -> None:
        self._connection, self._ask, self._deadline = connection, ask, deadline
        self._said = self._heard = time.monotonic()
        self._rows = 0

    def follow(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, with a look at the driver before each."""
        for batch in batches:
            self.check()
            self._rows += len(batch)
            yield batch

    def check(self) -> None:
        """Returns when more may be written, however long that takes; EOFError when the driver has hung up."""
        now = time.monotonic()
        if now - self._said > PROGRESS:
            self._sign()
        if now - self._heard > LISTEN:
            self._heard = now
            while self._connection.poll(0):
                self._hear()
        while clock() >= self._deadline:
            # Its driver may be busy, or stopped, or replaced: who does not know waits, and writes nothing meanwhile.
            self._sign()
            if self._connection.poll(PROGRESS):
                self._hear()
                time.sleep(0 if clock() < self._deadline else LISTEN)

    def _sign(self) -> None:
        self._said = time.monotonic()
        send(self._connection, {"ask": self._ask, "progress": self._rows})

    def _hear(self) -> None:
        message = receive(self._connection)
        if "deadline" not in message:
            raise EOFError("the driver wants no more of this")
        self._deadline = float(message["deadline"])


def warm() -> None:
    """Imports and compiles, before workers are forked, what their first epoch would otherwise wait for."""
    kinds: tuple[Kind, ...] = ("source", "destination", "format")
    for card in (card for kind in kinds for card in connectors.cards(kind).values()):
        for part in {"decoder", "completer", "writer", "format"} & card.parts.keys():
            try:
                module = importlib.import_module(card.load(part).__module__)
                getattr(module, "warm", lambda: None)()
            except ExtraMissing:
                # The business of a flow that names the connector.
                continue
            except Exception as error:
                # As is a connector that is broken.
                sys.stderr.write(f"{card.kind} {card.name} could not be warmed: {type(error).__name__}: {error}\n")
