"""The parts of an installation on this machine: PostgreSQL, Chroma, S3, replicas of the service
over them, and a Ray cluster for commands; each is real, and can be killed and started again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.processes import kill_tree
from benchmarks.report import say
from kb.errors import Unavailable
from tests.api.cli_process import COMMAND, ROOT, free_port
from tests.api.replicas import Replica
from tests.chroma_server import ChromaServer
from tests.one_server import Unstartable
from tests.postgresql import Server as PostgresServer
from tests.seaweed import S3Server

COMMAND_SECONDS = 600.0
READY_SECONDS = 1200.0  # to read and embed the built-in knowledge, on a busy machine
LEASE_SECONDS = 10  # work of a killed replica is taken over after so long


class Part(Protocol):
    """A part that can be killed; after a new start it has the same address."""

    @property
    def name(self) -> str:
        """Its name in the table."""
        ...

    def kill(self) -> None:
        """SIGKILL for it and all that it has started."""
        ...

    def start(self) -> None:
        """Start it. Returns once it answers."""
        ...


@dataclass(frozen=True)
class Postgres:
    """The server of the catalog. It syncs, as one in use does."""

    server: PostgresServer
    name: str = "PostgreSQL"

    def kill(self) -> None:
        """With its connections' processes."""
        self.server.kill()

    def start(self) -> None:
        """Recovers from its log first."""
        self.server.start()


@dataclass(frozen=True)
class Store:
    """The server of the files, or that of the vectors."""

    server: S3Server | ChromaServer
    name: str

    def kill(self) -> None:
        """It is a single process."""
        self.server.stop()

    def start(self) -> None:
        """With the data that it has."""
        self.server.start()


@dataclass(frozen=True)
class Service:
    """One replica, with the runs that it carries out."""

    replica: Replica
    name: str

    def kill(self) -> None:
        """With its parsers and runs."""
        self.replica.kill()

    def start(self) -> None:
        """Returns once it answers questions; it may still have something left to do."""
        self.replica.start()
        self.replica.await_answers()


@dataclass(frozen=True)
class RayNode:
    """One node of the Ray cluster."""

    cluster: RayCluster
    number: int
    name: str

    def kill(self) -> None:
        """With what it evaluates."""
        self.cluster.kill_node(self.number)

    def start(self) -> None:
        """Start a new node."""
        self.cluster.start()


@dataclass(frozen=True)
class RayHead:
    """The head of the Ray cluster, which knows what runs where and keeps it in memory alone."""

    cluster: RayCluster
    name: str

    def kill(self) -> None:
        """Its nodes lose their cluster."""
        self.cluster.kill_head()

    def start(self) -> None:
        """A new cluster at the same address."""
        self.cluster.start()


@dataclass(frozen=True)
class Installation:
    """All parts, running. `workstation` is the data directory of commands, `ray` the address of the
    Ray cluster."""

    parts: Sequence[Part]
    ray: str
    replicas: Sequence[Replica]
    environment: Mapping[str, str]
    workstation: Path

    def command(self, *arguments: str) -> Any:
        """The JSON of `kernlore ARGUMENTS --json`, run as a process. Raises Unavailable."""
        ran = subprocess.run(
            [*COMMAND, *arguments, "--json", "--data-dir", str(self.workstation)],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        if ran.returncode:
            raise Unavailable(
                f"kernlore {arguments[0]} ended with {ran.returncode}",
                hint=ran.stderr.strip()[-600:],
            )
        return json.loads(ran.stdout)

    def optimize(self, problem: str, *options: str) -> Any:
        """The result of a search that a command carries out on the Ray cluster."""
        output = Path(tempfile.mkdtemp(dir=self.workstation)) / "result"
        on = ("--ray", self.ray, "--output", str(output))
        return self.command("optimize", problem, *on, *options)


@contextmanager
def installation(
    folder: Path, replicas: int, nodes: int, knowledge: Path | None, model_cache: Path | None
) -> Iterator[Installation]:
    """Start everything in `folder`; stop and remove it at the end. `knowledge` replaces the
    built-in knowledge. Raises Unavailable if a server cannot be started."""
    with ExitStack() as stack:
        servers = _servers(stack)
        environment = _environment(*servers, knowledge)
        services = [
            _replica(folder / f"replica-{number}", environment, model_cache)
            for number in range(1, replicas + 1)
        ]
        for service in services:
            stack.callback(service.stop)
            service.start()
        for service in services:
            service.await_ready(READY_SECONDS)
            say(f"a replica answers at {service.url}")
        postgres, chroma, files = servers
        parts: list[Part] = [Postgres(postgres), Store(chroma, "Chroma"), Store(files, "S3")]
        parts += [Service(s, f"replica {n}") for n, s in enumerate(services, 1)]
        cluster = RayCluster(nodes)
        stack.callback(cluster.stop)
        cluster.start()
        say(f"a Ray cluster of {nodes} nodes answers at {cluster.address}")
        parts += [RayNode(cluster, n, f"Ray node {n}") for n in cluster.numbers]
        parts.append(RayHead(cluster, "Ray's head"))
        workstation = folder / "workstation"
        workstation.mkdir()
        yield Installation(parts, cluster.address, services, environment, workstation)


def _servers(stack: ExitStack) -> tuple[PostgresServer, ChromaServer, S3Server]:
    try:
        postgres = PostgresServer(durable=True)
        stack.callback(postgres.remove)
        chroma = ChromaServer()
        stack.callback(chroma.remove)
        files = S3Server()
        stack.callback(files.remove)
    except Unstartable as reason:
        raise Unavailable(str(reason), hint="`make setup postgres` installs all of them.") from None
    postgres.execute("CREATE DATABASE cluster TEMPLATE template0")
    return postgres, chroma, files


def _environment(
    postgres: PostgresServer, chroma: ChromaServer, files: S3Server, knowledge: Path | None
) -> dict[str, str]:
    environment = {
        "KERNLORE_CATALOG": postgres.url_of("cluster"),
        "KERNLORE_CHROMA_URL": chroma.url,
        "KERNLORE_BLOB_URL": files.folder_of_bucket(),
        "KERNLORE_LEASE_SECONDS": str(LEASE_SECONDS),
        "KERNLORE_LOG_LEVEL": "warning",
        **files.environment(),
    }
    if knowledge is not None:
        environment["KERNLORE_KNOWLEDGE_DIR"] = str(knowledge.absolute())
    return environment


def _replica(folder: Path, environment: Mapping[str, str], model_cache: Path | None) -> Replica:
    folder.mkdir()
    return Replica(folder, environment, model_cache)


# -- a Ray cluster: a head without processors, and nodes

LABEL = "cpu_model=x86-64"
OBJECT_STORE_BYTES = 80_000_000  # the least that Ray takes is 78.6 MB
START_SECONDS = 180.0
STARTED = "Ray runtime started"  # what `ray start` prints then


class _Started:
    """One `ray start --block` with these arguments; its output goes to `log`."""

    def __init__(self, arguments: Sequence[str], log: Path, folder: Path) -> None:
        self._log = log
        common = [f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats", "--block"]
        environment = {**os.environ, "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled"}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).parent / "ray"), "start", *arguments, *common],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    def await_started(self) -> None:
        """Returns once it has joined. Raises Unavailable."""
        deadline = time.monotonic() + START_SECONDS
        while STARTED not in self._log.read_text(encoding="utf-8", errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(
                    "a node of Ray did not start",
                    hint=self._log.read_text(encoding="utf-8", errors="replace")[-600:],
                )
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL for all of it."""
        if self._process.poll() is None:
            kill_tree(self._process.pid)
            self._process.wait()


class RayCluster:
    """The head and the nodes, running from `start` to `stop`. `address` is that of the head, which
    it keeps; `stop` ends everything."""

    def __init__(self, nodes: int) -> None:
        self._port = free_port()
        # Sockets of a node lie below it; their paths may not be long.
        self._folder = Path(tempfile.mkdtemp(prefix="kr", dir="/tmp"))
        self._count = nodes
        self._head: _Started | None = None
        self._nodes: dict[int, _Started] = {}

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return f"127.0.0.1:{self._port}"

    @property
    def numbers(self) -> range:
        """The nodes by number."""
        return range(1, self._count + 1)

    def start(self) -> None:
        """Start the head and every node that does not run. Nodes of an earlier head are ended
        first: they belong to no cluster any more."""
        if self._head is None:
            for number in list(self._nodes):
                self.kill_node(number)
            arguments = ["--head", "--node-ip-address=127.0.0.1", f"--port={self._port}"]
            arguments += ["--num-cpus=0", "--include-dashboard=false"]
            self._head = _Started(arguments, self._folder / "head.txt", self._folder)
            self._head.await_started()
        arguments = [f"--address={self.address}", "--node-ip-address=127.0.0.1", "--num-cpus=1"]
        arguments += [f"--labels={LABEL}", "--dashboard-agent-listen-port=0"]
        for number in self.numbers:
            if number not in self._nodes:
                log = self._folder / f"node-{number}.txt"
                self._nodes[number] = _Started(arguments, log, self._folder)
                self._nodes[number].await_started()  # it has 30 s, too few for all at once

    def kill_node(self, number: int) -> None:
        """One node loses its power."""
        self._nodes.pop(number).kill()

    def kill_head(self) -> None:
        """The head loses its power."""
        if self._head is not None:
            self._head.kill()
            self._head = None

    def stop(self) -> None:
        """End all of it, and remove what it has written."""
        for number in list(self._nodes):
            self.kill_node(number)
        self.kill_head()
        shutil.rmtree(self._folder, ignore_errors=True)
