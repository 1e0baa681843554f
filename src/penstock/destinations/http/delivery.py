"""The delivery of one bucket: tracks of requests, each in order, repeated where that can help, refused where it cannot."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable

from penstock.destinations.http.answer import Answer, Verdict
from penstock.destinations.http.aside import Aside
from penstock.destinations.http.client import Client
from penstock.destinations.http.options import HttpOptions
from penstock.destinations.http.request import Changes, Requests
from penstock.destinations.http.wave import Wave
from penstock.observe import failpoints

# How long an answer is waited for at a time, so that signs of life go out meanwhile.
_LOOK = 0.25


class Track:
    """Requests that go one after the other: what waits, and the one that is being tried."""

    def __init__(self, parcels: list[Changes]) -> None:
        self.waiting = deque(parcels)
        self.changes: Changes = ()
        self.body = b""
        self.tries = 0
        self.ready_at = 0.0


class Delivery:
    """Sends waves, one after the other, and keeps count."""

    def __init__(
        self,
        client: Client[Track],
        requests: Requests,
        options: HttpOptions,
        *,
        sets_aside: bool,
        progress: Callable[[], None],
    ) -> None:
        self._client, self._options = client, options
        self._requests = requests
        self._sets_aside, self._progress = sets_aside, progress
        self._ready_at = 0.0
        self._wave: Wave
        self.aside = Aside()
        self.tables: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    def send(self, wave: Wave) -> None:
        """Returns when the server has taken or refused every change of the wave; raises when it cannot be reached or refuses."""
        self._wave = wave
        self.aside.begin(wave)
        for changes in wave.stretches():
            shared = wave.tracks(changes, self._requests.tracks(wave, changes))
            self._run([Track(self._requests.cut(wave, mine)) for mine in shared])
        self.aside.end(wave)
        for part in wave.parts:
            self.tables[part.table.qualified] += len(part.batch)

    def _run(self, tracks: list[Track]) -> None:
        idle, flying = tracks, 0
        try:
            while True:
                now = time.monotonic()
                idle, begun = self._begin(idle, now)
                flying += begun
                if not idle and not flying:
                    return
                for track, answer in self._client.answers(self._pause(idle, now)):
                    flying -= 1
                    self._settle(track, answer)
                    idle.append(track)
                self._progress()
        except BaseException:
            self._client.abandon()
            raise

    def _begin(self, idle: list[Track], now: float) -> tuple[list[Track], int]:
        """Starts what can be started; the tracks that are neither done nor in flight, and how many were started."""
        still: list[Track] = []
        begun = 0
        for track in idle:
            if not len(track.changes) and not self._next(track):
                continue
            if max(track.ready_at, self._ready_at) > now:
                still.append(track)
            else:
                self._client.start(track, self._requests.headers(self._wave, track.changes, track.body), track.body)
                begun += 1
        return still, begun

    def _next(self, track: Track) -> bool:
        """Takes up the track's next request; false when there is none."""
        while track.waiting:
            track.changes = self.aside.hold_back(self._wave, track.waiting.popleft())
            if len(track.changes):
                track.body, track.tries, track.ready_at = self._requests.body(self._wave, track.changes), 0, 0.0
                return True
        return False

    def _pause(self, idle: list[Track], now: float) -> float:
        """How long to wait for an answer."""
        ready = [max(track.ready_at, self._ready_at) for track in idle]
        return max(0.0, min(_LOOK, *(at - now for at in ready)) if ready else _LOOK)

    def _settle(self, track: Track, answer: Answer) -> None:
        track.tries += 1
        verdict = answer.verdict if track.tries <= self._options.max_retries else answer.final
        if verdict is Verdict.TAKEN:
            self.bytes += len(track.body)
            track.changes, track.body = (), b""
            failpoints.reach("lane.in_send")
        elif verdict is Verdict.REFUSED:
            self._refuse(track, answer)
        elif verdict is Verdict.STOP or not self._wait(track, answer):
            raise answer.error(self._options.origin)

    def _wait(self, track: Track, answer: Answer) -> bool:
        """Arranges the next try; false when there is to be none here."""
        if track.tries > self._options.max_retries or answer.patience > self._options.backoff_max:
            return False
        steps = min(track.tries - 1, 64)
        pause = min(self._options.backoff_max, self._options.backoff_base * self._options.backoff_factor**steps)
        now = time.monotonic()
        track.ready_at = now + pause * random.uniform(0.5, 1.0)
        # What a server says of itself is meant for every request.
        self._ready_at = max(self._ready_at, now + answer.patience)
        self.counts["retries"] += 1
        return True

    def _refuse(self, track: Track, answer: Answer) -> None:
        """The one place where a change is refused: raised, or set aside. Of many changes the refused ones are sought first."""
        changes, track.changes, track.body = track.changes, (), b""
        if len(changes) > 1:
            half = len(changes) // 2
            track.waiting.extendleft([changes[half:], changes[:half]])
            return
        change = int(changes[0])
        error = answer.refusal(self._options.origin, self._wave.table(change).qualified, self._wave.event_id(change))
        if not self._sets_aside:
            raise error
        self.aside.set_aside(self._wave, change, error.code, error.message)
