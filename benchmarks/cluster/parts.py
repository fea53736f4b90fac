"""The parts of an installation on this machine: PostgreSQL, Chroma, S3, replicas of the service
over them, and a Ray cluster for commands; each is real, and can be killed and started again.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.cluster.ray_nodes import RayCluster
from benchmarks.report import say
from kb.errors import Unavailable
from tests.api.cli_process import COMMAND, ROOT
from tests.api.replicas import Replica
from tests.chroma_server import ChromaServer
from tests.one_server import Unstartable
from tests.postgresql import Server as PostgresServer
from tests.seaweed import S3Server

COMMAND_SECONDS = 600.0
READY_SECONDS = 1200.0  # to read and embed what is built in, on a busy machine
LEASE_SECONDS = 10  # work of a killed replica is taken over after so long


class Part(Protocol):
    """What can be lost. It keeps its place: after a new start it is reached as before."""

    @property
    def name(self) -> str:
        """What it is called in the table."""
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
        """A new node in its place."""
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
        """What `kernlore ARGUMENTS --json` prints, in a process of its own. Raises Unavailable."""
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
    """Start everything in `folder`; stop and remove it at the end. `knowledge` takes the place of
    what is built in. Raises Unavailable where a server cannot be started."""
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
        "KERNLORE_CATALOG": postgres.url("cluster"),
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
