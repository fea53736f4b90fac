"""The connection of this process to a Ray cluster, its nodes and their hardware, and the tasks that
it sends there.

The only module that imports Ray, which is an extra and takes a second. Nodes run a copy of the
source files of this process, so that all of them give the same results; the packages that these
files import must be installed on the nodes.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from kb.errors import InternalError, InvalidRequest, KernloreError, Unavailable

if TYPE_CHECKING:
    import ray


AUTO = "auto"  # the cluster that was started on this machine
ROOT = Path(__file__).resolve().parent.parent
NODE_ID = "ray.io/node-id"  # label of every node
_CONNECT_SECONDS = 5.0
_END_SECONDS = 1.0  # for a task to end after its last value
_SUFFIXES = (".py", ".toml", ".md", ".json", ".h", ".ptx")
_NOT_COPIED = ("optimizer/problems", "kb/catalog/migrations")
# Labels of GPUs, which Ray counts itself; it sets the second for accelerators that it knows.
_GPU_LABELS = ("gpu_model", "ray.io/accelerator-type")
_HOW_TO_DECLARE = (
    "Start its nodes with `ray start --labels=gpu_model=ID`, or for another chip with"
    " `--labels=npu=ID --resources='{\"npu\": 1}'`; ID is that of `kernlore hardware list`."
)

Resolver = Callable[[str], str | None]

log = structlog.get_logger(__name__)


class WorkLost(Unavailable):
    """A node, or the process on it, ended before its task. The state of the task is unknown."""


class SentTask:
    """A generator that runs on a node, and the values it has yielded so far."""

    def __init__(self, ray: Any, stream: ray.ObjectRefGenerator) -> None:
        self._ray = ray
        self._stream = stream

    def wait_for_value(self, seconds: float) -> bool:
        """Wait at most `seconds` for the next value or error. Returns whether there is one. Raises
        WorkLost if the connection is closed."""
        try:
            ready, _ = self._ray.wait([self._stream], timeout=seconds)
        except self._ray.exceptions.RayError as error:
            raise WorkLost("the connection was closed", hint="Start the command again.") from error
        return bool(ready)

    def next(self) -> Any:
        """The next value. Raises StopIteration at the end, WorkLost if the node or process has
        ended, InternalError for an error that the generator raised."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(next(self._stream))
        except SystemExit as error:  # raised by Ray when the connection is closed
            if threading.current_thread() is threading.main_thread():
                raise
            raise WorkLost("the connection was closed", hint="Start the command again.") from error
        except errors.RayTaskError as error:
            lines = str(error).strip().splitlines()
            raise InternalError(
                f"a task on a node failed: {lines[-1] if lines else error}",
                hint="This is a defect of Kernlore, or a package is missing on the node: see the"
                " log of the task in Ray's dashboard.",
                details={"trace": lines[-12:]},
            ) from error
        except errors.RayError as error:
            first = str(error).strip().splitlines()[0]
            raise WorkLost(
                f"a node or its process was lost: {first}",
                hint="Its task is repeated on another node.",
            ) from error

    def wait_for_end(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end of the task. Returns whether it has ended."""
        try:
            ready, _ = self._ray.wait([self._stream.completed()], timeout=seconds)
        except self._ray.exceptions.RayError:  # the connection is closed, which ends it
            return True
        return bool(ready)

    def cancel(self) -> None:
        """Kill the task with its process."""
        with suppress(self._ray.exceptions.RayError):  # the connection is closed, which ends it
            self._ray.cancel(self._stream, force=True)


class Cluster:
    """A cluster that this process is connected to. Thread-safe."""

    def __init__(self, ray: Any, address: str, dashboard: str | None) -> None:
        self._ray = ray
        self.address = address
        self.dashboard = dashboard
        self._open: dict[int, SentTask] = {}
        self._remote_functions: dict[Any, Any] = {}  # by function and own_process
        self._changing = threading.Lock()  # protects _open, _remote_functions and closed
        self.closed = False

    def nodes(self) -> list[ClusterNode]:
        """The nodes that are alive now; none once the connection is closed."""
        try:
            return living_nodes(self._ray.nodes())
        except self._ray.exceptions.RayError:
            return []

    def put(self, value: Any) -> Any:
        """Store a value in the cluster. The returned reference can be an argument of many tasks,
        and is sent to each node once."""
        return self._ray.put(value)

    def send(
        self,
        work: Callable[..., Iterator[Any]],
        *arguments: Any,
        name: str,
        options: Mapping[str, Any],
        own_process: bool = False,
    ) -> SentTask:
        """Run a generator function on a node as a task, without retries.

        `name` is shown in the dashboard, `options` are those of a Ray task. With `own_process`, its
        process runs no other task afterwards.
        """
        chosen = {"max_retries": 0, "num_returns": "streaming", **options, "name": name}
        with self._changing:
            if self.closed:
                raise Unavailable("the connection is closed", hint="Start the command again.")
            stream = self._remote(work, own_process).options(**chosen).remote(*arguments)
            sent = SentTask(self._ray, stream)
            self._open[id(sent)] = sent
        return sent

    def _remote(self, work: Callable[..., Iterator[Any]], own_process: bool) -> Any:
        key = (work, own_process)
        if key not in self._remote_functions:
            decorate = self._ray.remote(max_calls=1) if own_process else self._ray.remote
            self._remote_functions[key] = decorate(work)
        return self._remote_functions[key]

    def finish(self, sent: SentTask) -> None:
        """Release a task whose values are not needed any more, and cancel it if it still runs.

        A task that has yielded its last value is given a moment to end, because cancelling kills
        the process, which has modules loaded and may already run the next task.
        """
        with self._changing:
            known = self._open.pop(id(sent), None)
        if known is not None and not self.closed and not known.wait_for_end(_END_SECONDS):
            known.cancel()

    def close(self) -> None:
        """Cancel the tasks and disconnect."""
        with self._changing:
            self.closed = True
            left, self._open = list(self._open.values()), {}
        for sent in left:
            sent.cancel()
        self._ray.shutdown()


@contextmanager
def connect_to_cluster(address: str, packages: Sequence[str]) -> Iterator[Cluster]:
    """Connect to the cluster at `address` (`HOST:PORT` of its head, or `auto`) and copy these
    packages of this program to its nodes. A process has one connection at a time.

    Raises InvalidRequest for an address of another form, Unavailable without Ray and without a
    cluster of the same version.
    """
    ray = _import_ray()
    _check_address(address)
    with tempfile.TemporaryDirectory(prefix="kernlore-ray-") as folder:
        copy_sources(packages, Path(folder))
        dashboard = _connect(ray, address, folder)
        cluster = Cluster(ray, address, dashboard)
        try:
            yield cluster
        finally:
            cluster.close()


def _import_ray() -> Any:
    # No usage statistics, unless the user enables them.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray._private import auto_init_hook
    except ImportError as error:
        raise Unavailable("Ray is not installed", hint="pip install 'kernlore[ray]'") from error
    # Ray would start a local cluster when it is used after a connection was closed. There is no
    # public option for it.
    auto_init_hook.enable_auto_connect = False
    return ray


def _check_address(address: str) -> None:
    """Fail within seconds, where Ray would try for a minute."""
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
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from error


def _connect(ray: Any, address: str, folder: str) -> str | None:
    """Connect without changing signal handlers. Returns the URL of the dashboard."""
    in_main = threading.current_thread() is threading.main_thread()
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
        raise _no_cluster(address, " ".join(str(error).split())[:400]) from error
    finally:
        if in_main and before is not None:
            signal.signal(signal.SIGTERM, before)
    _log_quietly()
    url = context.dashboard_url
    return f"http://{url}" if url else None


def _log_quietly() -> None:
    """Log what Ray would print on standard output, which belongs to the answer of a command. There
    is no public option for it."""
    from ray._private import worker

    def note(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        log.debug("ray", lines=data["lines"])

    worker.print_to_stdstream = note


def _no_cluster(address: str, reason: str) -> KernloreError:
    return Unavailable(
        f"no Ray cluster of this version can be used at {address}: {reason}",
        hint="`ray status --address=HOST:PORT` shows whether it runs. This machine has to be one of"
        " its nodes, with the same versions of Python and Ray, and with RAY_AUTH_MODE=token and the"
        " token where its head requires one.",
    )


def source_files(packages: Sequence[str]) -> Iterator[Path]:
    """Code and data of these packages, also modules whose dependencies the nodes may not have."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            copied = path.suffix in _SUFFIXES and "__pycache__" not in path.parts
            if copied and not name.startswith(_NOT_COPIED):
                yield path


def copy_sources(packages: Sequence[str], folder: Path) -> None:
    """Copy packages into a folder from which they can be imported."""
    for path in source_files(packages):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


@dataclass(frozen=True)
class ClusterNode:
    """A node that is alive. `resources` include those in use."""

    id: str
    name: str
    labels: Mapping[str, str]
    resources: Mapping[str, float]


def living_nodes(rows: Sequence[Mapping[str, Any]]) -> list[ClusterNode]:
    """The nodes that are alive among the rows of `ray.nodes()`."""
    return [
        ClusterNode(
            row["NodeID"],
            # Several nodes may run on one host.
            f"{row['NodeManagerHostname']}/{row['NodeID'][:6]}",
            dict(row.get("Labels") or {}),
            dict(row.get("Resources") or {}),
        )
        for row in rows
        if row["Alive"]
    ]


@dataclass(frozen=True)
class Slots:
    """The nodes that declare one hardware by the same label. A task takes `amount` of `resource`:
    one GPU, one other chip, or all processors of a node."""

    hardware: str
    label: str
    values: tuple[str, ...]
    resource: str
    amount: float
    nodes: tuple[ClusterNode, ...]

    @property
    def count(self) -> int:
        """Number of tasks that run at the same time."""
        return sum(self.of(node) for node in self.nodes)

    def of(self, node: ClusterNode) -> int:
        """Number of tasks that a node runs at the same time."""
        return int(node.resources.get(self.resource, 0) // self.amount)

    def only(self, nodes: Collection[str]) -> Slots:
        """The slots on the nodes with these ids."""
        return replace(self, nodes=tuple(node for node in self.nodes if node.id in nodes))

    def has(self, node: ClusterNode) -> bool:
        """Whether a node, which may have joined later, declares the hardware."""
        return node.labels.get(self.label) in self.values and self.of(node) > 0

    def options(self, without: Collection[str] = ()) -> dict[str, Any]:
        """Ray options of a task that runs on one of these nodes, except those in `without`."""
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
    """The nodes that declare a hardware, by the label that gives most slots. `resolve` maps a
    label's value to a hardware id. Raises Unavailable."""
    by_label: dict[str, list[ClusterNode]] = {}
    for node in nodes:
        for label, value in node.labels.items():
            if label != NODE_ID and resolve(value) == hardware and _resource(node, label):
                by_label.setdefault(label, []).append(node)
    choices = [_slots(hardware, label, found) for label, found in sorted(by_label.items())]
    best = max(choices, key=lambda slots: slots.count, default=None)
    if best is None:
        declared = ", ".join(sorted(declared_hardware(nodes, resolve))) or "none"
        raise Unavailable(
            f"no node of the cluster declares {hardware}; declared hardware: {declared}",
            hint=_HOW_TO_DECLARE,
        )
    return best


def only_hardware(nodes: Sequence[ClusterNode], resolve: Resolver) -> str:
    """The only hardware that a cluster declares, for `auto`. Raises InvalidRequest for several,
    Unavailable for none."""
    found = sorted(declared_hardware(nodes, resolve))
    if len(found) > 1:
        raise InvalidRequest(
            f"the cluster has {', '.join(found)}", hint="Choose one of them with --hardware."
        )
    if not found:
        raise Unavailable("no node of the cluster declares a known hardware", hint=_HOW_TO_DECLARE)
    return found[0]


def declared_hardware(nodes: Sequence[ClusterNode], resolve: Resolver) -> set[str]:
    known = {
        resolve(value)
        for node in nodes
        for label, value in node.labels.items()
        if label != NODE_ID and _resource(node, label)
    }
    return {hardware for hardware in known if hardware is not None}


def _resource(node: ClusterNode, label: str) -> str:
    """The resource that counts the chips of a label, or "" if the node has none of it."""
    if label in _GPU_LABELS:
        return "GPU" if node.resources.get("GPU", 0) >= 1 else ""
    if node.resources.get(label, 0) >= 1:
        return label
    return "CPU" if node.resources.get("CPU", 0) >= 1 else ""


def _slots(hardware: str, label: str, nodes: Sequence[ClusterNode]) -> Slots:
    resource = _resource(nodes[0], label)
    alike = tuple(node for node in nodes if _resource(node, label) == resource)
    values = tuple(sorted({node.labels[label] for node in alike}))
    # A task that measures on processors takes a whole node: other tasks would disturb its times.
    amount = min(node.resources["CPU"] for node in alike) if resource == "CPU" else 1.0
    return Slots(hardware, label, values, resource, amount, alike)
