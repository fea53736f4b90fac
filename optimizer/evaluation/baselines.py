"""The reference as the other side of a timing.

On the CPU it runs in a process that has done nothing else: what a process has allocated and freed
before decides up to a tenth of the time there. On a GPU it runs in a process that stays from
candidate to candidate: its arrays are large and take longer to copy to the device than to use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.isolation.pool import RunnerPool
from optimizer.evaluation.isolation.runner_process import RunnerProcess
from optimizer.evaluation.loaded_kernel import LoadedKernel
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.shared_arrays import SharedStore
from optimizer.evaluation.timing.blocks import RUNNER_FAILED, BaselineFailed, Side
from optimizer.evaluation.toolchains.base import Loader

KEPT_USES = 50  # candidates; a process that stayed for ever would meet its limit of processor time


@dataclass
class Kept:
    """A side that waits, stopped, for the next candidate. `uses` counts the candidates that it was
    timed against."""

    side: Side
    uses: int = 1


class Baselines:
    """References in processes of their own. `keeps` says whether such a process stays for the next
    candidate; `folder` holds the reference's source; `flush_bytes` is the size of the buffer that
    is read before each timed call on a GPU."""

    def __init__(
        self,
        pool: RunnerPool,
        settings: EvaluationSettings,
        store: SharedStore,
        *,
        flush_bytes: int,
        folder: Path,
        keeps: bool,
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._flush_bytes = flush_bytes
        self._folder = folder
        self._store = store
        self._keeps = keeps
        self._kept: dict[str, Kept] = {}

    def begin(self, prepared: PreparedCase, seed: int) -> Callable[[], Side]:
        """A function that makes the reference's side ready with the values of the seed. It may be
        called beside other work, and raises BaselineFailed."""
        kept = self._kept.get(prepared.name)
        if kept is not None:
            kept.uses += 1
            return lambda: self._renewed(kept.side, prepared, seed)
        runner = self._pool.take()
        return lambda: self._loaded(runner, prepared, seed)

    def _renewed(self, side: Side, prepared: PreparedCase, seed: int) -> Side:
        try:
            side.runner.wake()
            settings = self._settings
            side.kernel.renew(prepared.sample(seed), settings.call_seconds, settings.freshens)
        except RUNNER_FAILED as failed:
            self._end(prepared.name, side)
            raise BaselineFailed(str(failed)) from failed
        return side

    def _loaded(self, runner: RunnerProcess, prepared: PreparedCase, seed: int) -> Side:
        name = hashlib.sha256(prepared.name.encode()).hexdigest()[:8]
        path = self._folder / f"reference_{name}.py"
        path.write_text(prepared.open.source, encoding="utf-8")
        kernel = LoadedKernel(
            runner,
            prepared.open,
            prepared.sample(seed),
            self._store,
            self._settings.without,
            followed=False,
            fresh=self._settings.freshens and runner.settings.device == "cpu",
        )
        side = Side("baseline", runner, kernel, trusted=True)
        try:
            kernel.load(
                Loader("python", path, "Model"),
                limits=self._settings.limits(runner.settings.device),
                flush_bytes=self._flush_bytes,
                seconds=self._settings.load_seconds,
            )
        except RUNNER_FAILED as failed:
            self._end(prepared.name, side)
            raise BaselineFailed(str(failed)) from failed
        if self._keeps:
            self._kept[prepared.name] = Kept(side)
        return side

    def leave(self, case: str, side: Side, failed: bool = False) -> Future[bool] | None:
        """Give the side back after one candidate. Returns the future of its process where that is
        being ended, else None."""
        kept = self._kept.get(case)
        if kept is None or failed or kept.uses >= KEPT_USES:
            return self._end(case, side)
        return None

    def _end(self, case: str, side: Side) -> Future[bool]:
        self._kept.pop(case, None)
        ending = self._pool.end(side.runner)
        ending.add_done_callback(lambda ended: side.kernel.close(reusable=ended.result()))
        return ending

    def close(self) -> None:
        """End the processes that stayed."""
        for case, kept in list(self._kept.items()):
            self._end(case, kept.side).result()
