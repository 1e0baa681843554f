"""The lane: a standing Spark task that reads slices, decodes its bucket and lets the destination's writer stage or send it.
Another kind reads chunks of tables from the source.

It connects to the driver, says which lane it is, gets its setup once and then descriptors, and answers each with a receipt or
an error. The end of the connection is the end of the lane. It imports no ledger and no control plane.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import connectors
from penstock.core.batch import Batch, Op
from penstock.core.card import Kind
from penstock.core.clock import clock
from penstock.core.epoch import Epoch
from penstock.core.packing import unpack
from penstock.destinations.aside import Aside
from penstock.destinations.base import Place, Writer
from penstock.engine.chunk_task import Reading
from penstock.engine.messages import receive, send
from penstock.engine.taking import Taking, pack_keys
from penstock.errors import DestinationFailed, ExtraMissing, PenstockError, SourceFailed
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice, unpack_slices
from penstock.observe.failpoints import reach
from penstock.sources.base import Completer, Decoder

PROGRESS = 1.0
"""Seconds between signs of life while a descriptor is worked on."""
LISTEN = 0.05
"""Seconds between looks at what the driver has said meanwhile."""

READERS_NICE = 10
"""How far readers of chunks stand back behind lanes that deliver."""


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
    work = ReadingWork(setup) if "reads" in setup else Work(setup)
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
                reply = {"error": work.failure(error).to_data()}
            send(connection, {"ask": descriptor["ask"], **reply})
            work.rest()
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
        takes = self._options.takes  # type: ignore[attr-defined]
        self._taking = Taking(self._decoder, lambda: source.load("chunks")({}), self._journal, takes)

    def do(self, descriptor: dict[str, Any], connection: Connection) -> dict[str, Any]:
        """One bucket of one epoch."""
        epoch = Epoch.from_data(descriptor["epoch"])
        slices = unpack_slices(descriptor["slices"])
        bucket = int(descriptor["bucket"])
        leash = _Leash(connection, descriptor["ask"], float(descriptor.get("deadline", math.inf)))
        self._writer.progress = leash.check
        passed: Counter[tuple[str, str]] = Counter()
        batches = self._decoded(descriptor, epoch, bucket, slices, passed)
        loads = "chunks" in (descriptor.get("side") or {})
        if self._completer is not None and not loads:
            batches = self._completer.complete(epoch, bucket, self._journal, slices, batches)
        aside = self._aside(descriptor, epoch, bucket, slices)
        if aside is not None:
            replayed = [unpack(content) for content in descriptor["aside"]["letters"]]
            batches = aside.passed(itertools.chain(replayed, batches))
        self._writer.aside = aside if self._writer.sets_aside else None
        reach("lane.before_write")
        leash.check()
        receipt = dict(self._writer.write(epoch, bucket, leash.follow(batches)))
        reach("lane.after_write")
        if passed:
            receipt["passed"] = [[*name, count] for name, count in passed.items()]
        if self._taking.again:
            receipt["again"] = [[*name, pack_keys(keys)] for name, keys in self._taking.again.items()]
        if aside is not None:
            if refused := receipt.get("refused"):
                aside.fetch(refused, itertools.chain(replayed, self._decoded(descriptor, epoch, bucket, slices)))
            receipt["letters"] = aside.letters
            receipt["truncated"] = [[*name, *at] for name, at in aside.truncated.items()]
        if self._completer is not None and not loads:
            receipt["counts"] = {**(receipt.get("counts") or {}), **self._completer.counts}
        return receipt

    def _decoded(
        self,
        descriptor: dict[str, Any],
        epoch: Epoch,
        bucket: int,
        slices: Sequence[Slice],
        passed: Counter[tuple[str, str]] | None = None,
    ) -> Iterator[Batch]:
        batches = self._taking.batches(descriptor, slices, bucket, epoch.buckets)
        begin, end = descriptor.get("parts") or (epoch.after_part, epoch.upto_part)
        if (begin or end) and not epoch.is_side:
            batches = _parts(batches, begin, end or sys.maxsize, slices)
        names = frozenset((schema, table) for schema, table in descriptor.get("quarantined", ()))
        return _without(batches, names, bucket, passed) if names else batches

    def _aside(self, descriptor: dict[str, Any], epoch: Epoch, bucket: int, slices: Sequence[Slice]) -> Aside | None:
        """Where this bucket's refused changes go, and those that wait; None when there can be none."""
        given = descriptor.get("aside")
        if given is None:
            return None
        parked = {(schema, table): pa.array(keys, pa.large_string()) for schema, table, keys in given["parked"]}
        applies = getattr(self._options, "on_truncate", "apply") == "apply"
        aside = Aside(parked, waits=self._waits, room=given["room"], truncates=applies)
        if given["refused"]:
            replayed = [unpack(content) for content in given["letters"]]
            again = self._decoded(descriptor, epoch, bucket, slices)
            aside.condemn(given["refused"], itertools.chain(replayed, again))
        return aside

    def failure(self, error: Exception) -> PenstockError:
        """What an error means that nobody foresaw."""
        return DestinationFailed(f"a lane of {self.place.destination} failed: {type(error).__name__}: {error}")

    def rest(self) -> None:
        """Uses the time until the next epoch; what fails now is met again, and said, when that is written."""
        with contextlib.suppress(PenstockError, OSError):
            self._writer.rest()

    def close(self) -> None:
        """Gives back connections and files."""
        self._writer.close()
        if self._completer is not None:
            self._completer.close()
        self._journal.close()


class ReadingWork:
    """What a lane keeps that reads chunks for every destination."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._reading = Reading(setup["reads"])
        self._thread = ThreadPoolExecutor(1, "reading", _give_way)

    def do(self, descriptor: dict[str, Any], connection: Connection) -> dict[str, Any]:
        """One group of chunks."""
        leash = _Leash(connection, descriptor["ask"], math.inf)

        def stopping() -> bool:
            # Whoever hangs up is met here.
            leash.check()
            return False

        def read() -> list[dict[str, Any]]:
            return list(self._reading.read(descriptor["order"], descriptor["items"], stopping))

        return {"found": self._thread.submit(read).result()}

    def failure(self, error: Exception) -> PenstockError:
        """What an error means that nobody foresaw."""
        return SourceFailed(f"chunks could not be read: {type(error).__name__}: {error}")

    def rest(self) -> None:
        """Nothing: the connections stay open for the next group."""

    def close(self) -> None:
        """Gives back the connections."""
        self._reading.close()
        self._thread.shutdown()


def _give_way() -> None:
    # Lanes that deliver come first, those of the stream and those of the load: readers that took their turn like everybody filled
    # the journal with chunks, and stood still while lanes caught up. A thread of its own, since a process that is to be used
    # for something else afterwards may not get its priority back.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), READERS_NICE)


def _without(
    batches: Iterator[Batch], names: frozenset[tuple[str, str]], bucket: int, passed: Counter[tuple[str, str]] | None
) -> Iterator[Batch]:
    """The batches but those of quarantined tables, whose changes are counted."""
    for batch in batches:
        name = (batch.table.schema, batch.table.name)
        if name not in names:
            yield batch
        elif passed is not None:
            # A key change is two rows, and every bucket is given each TRUNCATE.
            apart = [Op.LEAVE] if bucket == 0 else [Op.LEAVE, Op.TRUNCATE]
            passed[name] += len(batch) - int(np.isin(batch.op.to_numpy(), apart).sum())


def _parts(batches: Iterator[Batch], begin: int, end: int, slices: Sequence[Slice]) -> Iterator[Batch]:
    """What belongs to an epoch that begins or ends inside of a transaction, whatever pieces the journal has that in."""
    for batch in batches:
        earlier = pc.and_(pc.equal(batch.position, slices[0].last), pc.less_equal(batch.ordinal, begin))
        later = pc.and_(pc.equal(batch.position, slices[-1].last), pc.greater(batch.ordinal, end))
        foreign = pc.or_(earlier, later)
        yield batch.filter(pc.invert(foreign)) if pc.any(foreign).as_py() else batch


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
        for part in {"decoder", "completer", "chunks", "writer", "format"} & card.parts.keys():
            try:
                module = importlib.import_module(card.load(part).__module__)
                getattr(module, "warm", lambda: None)()
            except ExtraMissing:
                # The business of a flow that names the connector.
                continue
            except Exception as error:
                # As is a connector that is broken.
                sys.stderr.write(f"{card.kind} {card.name} could not be warmed: {type(error).__name__}: {error}\n")
