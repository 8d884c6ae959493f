# SPDX-License-Identifier: Apache-2.0 OR MIT
"""memlift's processes under joblib: arrays that go to workers and come back are copied once and never pickled.

    import memlift.joblib
    memlift.joblib.register()
    with joblib.parallel_config("memlift", n_jobs=4):
        joblib.Parallel()(joblib.delayed(f)(array) for array in arrays)

- **Flow** joblib's batches of calls ─▶ futures of one `memlift.Executor` per `Parallel` ─▶ joblib's callback
- **Rule** functions that no module has (lambdas, those defined in functions) go by joblib's cloudpickle, as under joblib's own processes
- **Not here** `inner_max_num_threads`, which joblib refuses by name; memory maps: nothing is written to a folder
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from joblib import cpu_count, register_parallel_backend, wrap_non_picklable_objects
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

from memlift._functions import name_of
from memlift.errors import UnsupportedTypeError
from memlift.executor import Executor

__all__ = ["Backend", "register"]


def register(make_default: bool = False) -> None:
    """Makes "memlift" a backend of joblib, and the default one if asked to."""
    register_parallel_backend("memlift", Backend, make_default=make_default)


def _run(batch: Callable[[], Any]) -> Any:
    return batch()


def _sendable(function: Any) -> Any:
    try:
        name_of(function, True)
    except UnsupportedTypeError:
        return wrap_non_picklable_objects(function, keep_wrapper=True)
    return function


class Backend(AutoBatchingMixin, ParallelBackendBase):
    """A backend of joblib (docs: custom parallel backends) whose workers are those of a `memlift.Executor`.

    mp_context  how workers are started: as `multiprocessing` starts processes in this program, unless given
    """

    supports_retrieve_callback = True

    def __init__(self, mp_context: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self._mp_context = multiprocessing.get_context(mp_context) if isinstance(mp_context, str) else mp_context
        self._executor: Executor | None = None
        self._n_jobs = 1

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many workers `n_jobs` means: all processors for -1, all but one for -2."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(cpu_count() + 1 + n_jobs, 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        """Makes ready for the calls of one `Parallel`; options of other backends (memory maps, folders) mean nothing here."""
        self.parallel = parallel
        self._n_jobs = self.effective_n_jobs(n_jobs)
        self._executor = Executor(self._n_jobs, self._mp_context, allow_pickle=True)
        return self._n_jobs

    def submit(self, func: Any, callback: Callable[[Future[Any]], None] | None = None) -> Future[Any]:
        """Starts a batch of calls."""
        if self._executor is None:
            raise RuntimeError("the backend was terminated")
        func.items = [(_sendable(function), arguments, named) for function, arguments, named in func.items]
        future = self._executor.submit(_run, func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """The results of a batch that has ended, or what it raised."""
        return out.result()

    def terminate(self) -> None:
        """Ends the workers after their calls."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Ends the workers now, after a call has failed or taken too long."""
        if self._executor is not None:
            self._executor.terminate_workers()
        self.terminate()
        if ensure_ready:
            self.configure(self._n_jobs, self.parallel)
