"""The engine on a thread of its own, with an asyncio face."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from refdraft.decoder.engine import Engine
from refdraft.decoder.request import Commit, DecodeRequest
from refdraft.decoder.slot import Listener, Slot
from refdraft.errors import OverloadedError, UnavailableError

log = logging.getLogger(__name__)


class AsyncEngine:
    """Runs an `Engine` until closed.

    Args:
        engine: the engine; no one else may touch it from then on.
        queue_limit: requests that may wait for a slot; one more is refused.
    """

    def __init__(self, engine: Engine, *, queue_limit: int) -> None:
        self._engine = engine
        self._capacity = engine.target.slots + queue_limit
        self._running = 0
        self._calls: list[Callable[[], None]] = []  # for the engine's thread to make between two steps
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="refdraft-engine", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Requests that wait or run."""
        return self._running

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one of the places that slots and queue have together, from before a request is worked on.

        Raises:
            OverloadedError: every slot is taken and the queue is full.
        """
        with self._wake:
            if self._running >= self._capacity:
                raise OverloadedError(f"{self._running} requests wait or run, which is all that is allowed; try again")
            self._running += 1
        try:
            yield
        finally:
            with self._wake:
                self._running -= 1

    async def stream(self, requests: Sequence[DecodeRequest]) -> AsyncGenerator[tuple[int, Commit], None]:
        """Decode the samples of one prompt, for which the caller holds a place.

        Closing the iterator early cancels them all and frees their slots before the next step.

        Args:
            requests: at least one; all have the same prompt, which is prefilled once.

        Yields:
            (position in `requests`, commit); each request's last commit carries its finish reason.

        Raises:
            UnavailableError: the engine was closed.
            InvalidRequestError: the prompt does not fit the context, or what a request allows leaves no token.
        """
        samples: list[Slot] = []
        try:
            self._engine.check(requests[0])  # before a drafter is built for nothing
            commits: asyncio.Queue[tuple[int, Commit | Exception]] = asyncio.Queue()
            for position, request in enumerate(requests):
                drafter = await asyncio.to_thread(self._engine.build_drafter, request)
                samples.append(self._engine.prepare(request, drafter, _listener(position, commits)))
            self._call(lambda: self._engine.submit(*samples))
            running = len(samples)
            while running:
                position, commit = await commits.get()
                if isinstance(commit, Exception):
                    raise commit
                yield position, commit
                running -= commit.finish_reason is not None
        finally:
            for sample in samples:
                sample.cancelled = True

    def close(self) -> None:
        """Stop after the step under way; requests that have not finished end with UnavailableError."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _call(self, call: Callable[[], None]) -> None:
        with self._wake:
            if self._closed:
                raise UnavailableError("the engine is shut down")
            self._calls.append(call)
            self._wake.notify()

    def _run(self) -> None:
        while self._take_calls():
            try:
                self._engine.step()
            except Exception as error:
                log.exception("a step failed; the requests that were running are given up")
                self._engine.fail_all(error)
        self._engine.fail_all(UnavailableError("the engine is shut down"), waiting=True)

    def _take_calls(self) -> bool:
        """Wait for something to do, make the calls that came in, and tell whether to go on."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._calls or self._engine.busy)
            calls, self._calls = self._calls, []
        for call in calls:
            call()
        return not self._closed


def _listener(position: int, commits: "asyncio.Queue[tuple[int, Commit | Exception]]") -> Listener:
    """Carries what the engine's thread says of one sample to the running loop."""
    loop = asyncio.get_running_loop()

    def listen(commit: Commit | Exception) -> None:
        with suppress(RuntimeError):  # the caller's loop is closed: nobody listens any more
            loop.call_soon_threadsafe(commits.put_nowait, (position, commit))

    return listen
