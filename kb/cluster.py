"""The connection of this process to a Ray cluster, and the work that it sends there.

The only module that imports Ray, which is an extra and takes a second. Nodes run the source files
of this process, not an installed copy, so that all nodes judge and read as this process does; what
those files import has to be installed there.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

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


# -- source files: The files of this program that go to another machine: what runs there is what r

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = (".py", ".toml", ".md", ".json", ".h", ".ptx")
LEFT_OUT = ("optimizer/problems", "kb/catalog/migrations")


def source_files(packages: Sequence[str]) -> Iterator[Path]:
    """Code and data of these packages. Modules that need what is not installed there are among
    them; nothing imports those there.
    """
    for package in packages:
        for path in sorted((ROOT / package).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            travels = path.suffix in SUFFIXES and "__pycache__" not in path.parts
            if travels and not name.startswith(LEFT_OUT):
                yield path


def copy_sources(packages: Sequence[str], folder: Path) -> None:
    """Copy these packages into a folder from which they can be imported."""
    for path in source_files(packages):
        copied = folder / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)


# -- nodes: Which nodes of a cluster have which hardware, by the labels that they were started wit

NODE_ID = "ray.io/node-id"  # a label of every node
DETECTED = "ray.io/accelerator-type"  # a label that Ray gives nodes with an accelerator it knows
GPU_LABELS = ("gpu_model", DETECTED)  # Ray counts GPUs by itself
DECLARE = (
    "Start its nodes with `ray start --labels=gpu_model=ID`, or for another chip with"
    " `--labels=npu=ID --resources='{\"npu\": 1}'`; ID is that of `kernlore hardware list`."
)

Resolver = Callable[[str], str | None]


@dataclass(frozen=True)
class ClusterNode:
    """A node that is alive. `resources` are all that it has, whether they are in use or not."""

    id: str
    name: str
    labels: Mapping[str, str]
    resources: Mapping[str, float]


def living_nodes(rows: Sequence[Mapping[str, Any]]) -> list[ClusterNode]:
    """The nodes that are alive, of the rows of `ray.nodes()`."""
    return [
        ClusterNode(
            row["NodeID"],
            # Nodes on one host have its name in common.
            f"{row['NodeManagerHostname']}/{row['NodeID'][:6]}",
            dict(row.get("Labels") or {}),
            dict(row.get("Resources") or {}),
        )
        for row in rows
        if row["Alive"]
    ]


@dataclass(frozen=True)
class Slots:
    """The nodes that declare one hardware by the same label.

    One piece of work takes `amount` of `resource`: one GPU, one of the chips, or all processors of
    a node.
    """

    hardware: str
    label: str
    values: tuple[str, ...]
    resource: str
    amount: float
    nodes: tuple[ClusterNode, ...]

    @property
    def count(self) -> int:
        """How many pieces of work run side by side."""
        return sum(self.of(node) for node in self.nodes)

    def of(self, node: ClusterNode) -> int:
        """How many pieces of work a node takes at once."""
        return int(node.resources.get(self.resource, 0) // self.amount)

    def only(self, nodes: Collection[str]) -> Slots:
        """The same on the nodes with these ids alone."""
        kept = tuple(node for node in self.nodes if node.id in nodes)
        return Slots(self.hardware, self.label, self.values, self.resource, self.amount, kept)

    def has(self, node: ClusterNode) -> bool:
        """Whether a node, which may have joined since, declares the hardware."""
        return node.labels.get(self.label) in self.values and self.of(node) > 0

    def options(self, without: Collection[str] = ()) -> dict[str, Any]:
        """What a task asks of Ray, so that it runs on such a node, but on none `without` these
        ids."""
        selector = {self.label: f"in({','.join(self.values)})"}
        if without:
            selector[NODE_ID] = f"!in({','.join(sorted(without))})"
        chosen: dict[str, Any] = {"num_cpus": 0, "label_selector": selector}
        if self.resource == "GPU":
            return {**chosen, "num_gpus": self.amount}
        if self.resource == "CPU":
            return {**chosen, "num_cpus": self.amount}
        return {**chosen, "resources": {self.resource: self.amount}}


def slots_for(nodes: Sequence[ClusterNode], hardware: str, resolve: Resolver) -> Slots:
    """The nodes that declare a hardware, by the label that gives most places. `resolve` turns a
    label's value into a hardware id. Raises Unavailable.
    """
    by_label: dict[str, list[ClusterNode]] = {}
    for node in nodes:
        for label, value in node.labels.items():
            if label != NODE_ID and resolve(value) == hardware and _resource(node, label):
                by_label.setdefault(label, []).append(node)
    choices = [_slots(hardware, label, found) for label, found in sorted(by_label.items())]
    best = max(choices, key=lambda slots: slots.count, default=None)
    if best is None:
        there = ", ".join(sorted(declared(nodes, resolve))) or "none at all"
        raise Unavailable(
            f"no node of the cluster declares {hardware}; hardware that is declared: {there}",
            hint=DECLARE,
        )
    return best


def only_hardware(nodes: Sequence[ClusterNode], resolve: Resolver) -> str:
    """The hardware of a cluster that declares a single one, for `auto`. Raises InvalidRequest and
    Unavailable.
    """
    there = sorted(declared(nodes, resolve))
    if len(there) > 1:
        raise InvalidRequest(
            f"the cluster has {', '.join(there)}", hint="Choose one of them with --hardware."
        )
    if not there:
        raise Unavailable("no node of the cluster declares a known hardware", hint=DECLARE)
    return there[0]


def declared(nodes: Sequence[ClusterNode], resolve: Resolver) -> set[str]:
    """Every hardware that some node declares."""
    known = {
        resolve(value)
        for node in nodes
        for label, value in node.labels.items()
        if label != NODE_ID and _resource(node, label)
    }
    return {hardware for hardware in known if hardware is not None}


def _resource(node: ClusterNode, label: str) -> str:
    """What counts the chips that a label names; empty where the node has none of it."""
    if label in GPU_LABELS:
        return "GPU" if node.resources.get("GPU", 0) >= 1 else ""
    if node.resources.get(label, 0) >= 1:
        return label
    return "CPU" if node.resources.get("CPU", 0) >= 1 else ""


def _slots(hardware: str, label: str, nodes: Sequence[ClusterNode]) -> Slots:
    resource = _resource(nodes[0], label)
    alike = tuple(node for node in nodes if _resource(node, label) == resource)
    values = tuple(sorted({node.labels[label] for node in alike}))
    # Who measures on processors takes all of a node: other work beside it would be in its times.
    amount = min(node.resources["CPU"] for node in alike) if resource == "CPU" else 1.0
    return Slots(hardware, label, values, resource, amount, alike)
