# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Dynamic batches: a handler gets the inputs of several calls as one list, and gives a list of their answers.

- **Flow** a call arrives ─▶ it waits for others, for `max_delay` at most ─▶ up to `max_batch` inputs ─▶ the handler ─▶ each call's answer
- **Order** first come, first served; one batch at a time, on a thread of the operation's own. What arrives meanwhile is the next batch, and
  its wait counts from its first call's arrival, so a busy handler is not waited for twice
- **Owner** a call that fails fails alone: if the handler raises, its calls are given to it one by one
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from memlift import _native
from memlift._kind import Arguments


class Batches:
    """The calls of one operation that wait for their batch. The handler is asked by `run`, which gives what it returns."""

    def __init__(self, name: str, run: Callable[[list[Any]], Any], max_batch: int, max_delay: float, one_by_one: bool) -> None:
        if max_batch < 1:
            raise ValueError("max_batch must be 1 or more")
        if not 0 <= max_delay < float("inf"):
            raise ValueError("max_delay is a number of seconds, zero or more")
        self._name, self._run, self._most, self._delay, self._one_by_one = name, run, max_batch, max_delay, one_by_one
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Any, _native.Reply, float]] = deque()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def take(self, given: Any, reply: "_native.Reply") -> None:
        """Takes a call, from any thread."""
        if type(given) is Arguments:
            raise TypeError(f"operation {self._name!r} takes one argument for each call: its handler gets a list of them")
        with self._changed:
            if self._stopped:
                return
            self._waiting.append((given, reply, time.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"memlift-batch-{self._name}", daemon=True)
                self._thread.start()
            # Between the first and the last of a batch there is nothing to do.
            if len(self._waiting) in (1, self._most):
                self._changed.notify()

    def stop(self) -> None:
        """Ends the thread after the batch that it runs, and waits for it unless it is this one. Calls that wait are dropped."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _serve(self) -> None:
        while batch := self._next():
            self._answer([(given, reply) for given, reply, _ in batch if not reply.over])
            del batch

    def _next(self) -> list[tuple[Any, "_native.Reply", float]]:
        """Waits for the next batch; none: the server has stopped."""
        with self._changed:
            while not self._waiting and not self._stopped:
                self._changed.wait()
            until = self._waiting[0][2] + self._delay if self._waiting else 0.0
            while len(self._waiting) < self._most and not self._stopped and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]

    def _answer(self, batch: "list[tuple[Any, _native.Reply]]") -> None:
        if not batch:
            return
        try:
            answers = self._checked(self._run([given for given, _ in batch]), len(batch))
        except BaseException as error:
            if len(batch) == 1 or not self._one_by_one:
                answers = [error] * len(batch)
            else:
                for call in batch:
                    self._answer([call])
                return
        for (_, reply), answer in zip(batch, answers, strict=True):
            _send(reply, answer)

    def _checked(self, answers: Any, count: int) -> Sequence[Any]:
        if isinstance(answers, (str, bytes, dict)) or not hasattr(answers, "__len__") or not hasattr(answers, "__getitem__"):
            raise TypeError(f"the handler of {self._name!r} returned {type(answers).__name__}: return a list with an answer for each input")
        if len(answers) != count:
            raise ValueError(f"the handler of {self._name!r} returned {len(answers)} answers to {count} inputs")
        return answers  # type: ignore[no-any-return]


def _send(reply: "_native.Reply", answer: Any) -> None:
    try:
        if isinstance(answer, BaseException):
            reply.fail(answer)
        else:
            reply.send(answer)
    except Exception as error:
        if not reply.over:
            reply.fail(error)
