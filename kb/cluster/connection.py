"""The connection of this process to a Ray cluster, and the work that it sends there.

The only module that imports Ray, which is an extra and takes a second. Nodes run the source files
of this process, not an installed copy, so that all nodes judge and read as this process does; what
those files import has to be installed there.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from kb.cluster.nodes import ClusterNode, living_nodes
from kb.cluster.source_files import copy_sources
from kb.errors import InternalError, InvalidRequest, KernloreError, Unavailable

if TYPE_CHECKING:
    import ray

INSTALL = "pip install 'kernlore[ray]'"
REACH_SECONDS = 5.0
END_SECONDS = 1.0  # in which work that has given its answer ends
AUTO = "auto"  # the cluster that was started on this machine

log = structlog.get_logger(__name__)


class WorkLost(Unavailable):
    """A node, or the process on it, ended before the work did. Nothing is known about the work."""


class Sent:
    """Work on its way: a generator that runs on a node, and what it has yielded there so far."""

    def __init__(self, ray: Any, stream: ray.ObjectRefGenerator) -> None:
        self._ray = ray
        self._stream = stream

    def answered(self, seconds: float) -> bool:
        """Wait at most so long for the next value; whether there is one, or an error. Raises
        WorkLost where the connection is closed.
        """
        try:
            ready, _ = self._ray.wait([self._stream], timeout=seconds)
        except self._ray.exceptions.RayError as error:
            raise WorkLost("the connection was closed", hint="Start the command again.") from error
        return bool(ready)

    def next(self) -> Any:
        """The next value. Raises WorkLost where node or process has ended, InternalError where the
        work failed in a way that it does not report itself, StopIteration at its end.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(next(self._stream))
        except SystemExit as error:  # so Ray ends a wait when the connection is closed
            if threading.current_thread() is threading.main_thread():
                raise
            raise WorkLost("the connection was closed", hint="Start the command again.") from error
        except errors.RayTaskError as error:
            lines = str(error).strip().splitlines()
            raise InternalError(
                f"work on a node failed: {lines[-1] if lines else error}",
                hint="This is a defect of Kernlore, or a package is missing there: see the log of"
                " the task in Ray's dashboard.",
                details={"trace": lines[-12:]},
            ) from error
        except errors.RayError as error:
            first = str(error).strip().splitlines()[0]
            raise WorkLost(
                f"a node or its process was lost: {first}",
                hint="Its work begins again on another node.",
            ) from error

    def ended(self, seconds: float) -> bool:
        """Wait at most so long for the end of the work; whether it has come."""
        try:
            ready, _ = self._ray.wait([self._stream.completed()], timeout=seconds)
        except self._ray.exceptions.RayError:  # the connection is closed, which ends it
            return True
        return bool(ready)

    def cancel(self) -> None:
        """End it, whatever it is doing, with its process."""
        with suppress(self._ray.exceptions.RayError):  # the connection is closed, which ends it
            self._ray.cancel(self._stream, force=True)


class Cluster:
    """A cluster that this process is connected to. Its methods may be called by any thread."""

    def __init__(self, ray: Any, address: str, dashboard: str | None) -> None:
        self._ray = ray
        self.address = address
        self.dashboard = dashboard
        self._open: dict[int, Sent] = {}
        self._known: dict[Any, Any] = {}  # functions that the cluster has
        self._changing = threading.Lock()  # protects _open, _known and closed
        self.closed = False

    def nodes(self) -> list[ClusterNode]:
        """The nodes that are alive now; none once the connection is closed."""
        try:
            return living_nodes(self._ray.nodes())
        except self._ray.exceptions.RayError:
            return []

    def put(self, value: Any) -> Any:
        """A reference to a value that many pieces of work take, so that each node gets it once."""
        return self._ray.put(value)

    def send(
        self,
        work: Callable[..., Iterator[Any]],
        *arguments: Any,
        name: str,
        options: Mapping[str, Any],
        own_process: bool = False,
    ) -> Sent:
        """Run a generator of a module on a node. `name` is what the dashboard calls it; `options`
        say what it takes and where, as for a task of Ray; nothing else runs in its process after it
        with `own_process`. It is not tried again by itself.
        """
        chosen = {"max_retries": 0, "num_returns": "streaming", **options, "name": name}
        with self._changing:
            if self.closed:
                raise Unavailable("the connection is closed", hint="Start the command again.")
            stream = self._remote(work, own_process).options(**chosen).remote(*arguments)
            sent = Sent(self._ray, stream)
            self._open[id(sent)] = sent
        return sent

    def _remote(self, work: Callable[..., Iterator[Any]], own_process: bool) -> Any:
        key = (work, own_process)
        if key not in self._known:
            decorate = self._ray.remote(max_calls=1) if own_process else self._ray.remote
            self._known[key] = decorate(work)
        return self._known[key]

    def forget(self, sent: Sent) -> None:
        """Work has answered, or is not waited for any more: what still runs of it is cancelled.

        One that has answered is about to end. Its process is left alone then: it keeps what it has
        loaded, and may be at the next piece of work by the time that it would be killed.
        """
        with self._changing:
            known = self._open.pop(id(sent), None)
        if known is not None and not self.closed and not known.ended(END_SECONDS):
            known.cancel()

    def close(self) -> None:
        """Cancel what runs, and disconnect."""
        with self._changing:
            self.closed = True
            left, self._open = list(self._open.values()), {}
        for sent in left:
            sent.cancel()
        self._ray.shutdown()


@contextmanager
def connected(address: str, packages: Sequence[str]) -> Iterator[Cluster]:
    """A connection to the cluster at `address`: `HOST:PORT` of its head, or `auto`. `packages` are
    those of this program that its nodes run. A process has one at a time.

    Raises InvalidRequest for an address of another form, Unavailable without Ray, and where there
    is no cluster or it is of another version.
    """
    ray = _imported()
    _check(address)
    with tempfile.TemporaryDirectory(prefix="kernlore-ray-") as folder:
        copy_sources(packages, Path(folder))
        dashboard = _connect(ray, address, folder)
        cluster = Cluster(ray, address, dashboard)
        try:
            yield cluster
        finally:
            cluster.close()


def _imported() -> Any:
    # A cluster of a company is nobody else's business; who wants to report sets it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray._private import auto_init_hook
    except ImportError as error:
        raise Unavailable("Ray is not installed", hint=INSTALL) from error
    # Ray would start a cluster of its own, here, for whoever asks it something once a connection is
    # closed. There is no argument for it.
    auto_init_hook.enable_auto_connect = False
    return ray


def _check(address: str) -> None:
    """Raises in seconds where Ray would try for a minute."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdecimal():
        raise InvalidRequest(
            f"--ray is {address!r}",
            hint="Give HOST:PORT of the cluster's head, as `ray start --head` prints it, or auto."
            " This machine has to be a node: `ray start --address=HOST:PORT --num-cpus=0`.",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _absent(address, str(error)) from error


def _connect(ray: Any, address: str, folder: str) -> str | None:
    """Connect, with the handlers of signals left as they are; the address of the dashboard."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        context = ray.init(
            address=address,
            namespace="kernlore",
            runtime_env={"working_dir": folder},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _absent(address, " ".join(str(error).split())[:400]) from error
    finally:
        if here and before is not None:
            signal.signal(signal.SIGTERM, before)
    _without_dumps()
    url = context.dashboard_url
    return f"http://{url}" if url else None


def _without_dumps() -> None:
    """Ray prints the log of a node that died on standard output, which is for the answer. What
    matters of it is said by whoever waits for the work. There is no setting for it.
    """
    from ray._private import worker

    def note(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        log.debug("ray", lines=data["lines"])

    worker.print_to_stdstream = note


def _absent(address: str, reason: str) -> KernloreError:
    return Unavailable(
        f"no Ray cluster of this version can be used at {address}: {reason}",
        hint="`ray status --address=HOST:PORT` says whether it is up. This machine has to be one of"
        " its nodes, with the same versions of Python and Ray, and with RAY_AUTH_MODE=token and the"
        " token where its head asks for one.",
    )
