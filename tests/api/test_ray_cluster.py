"""Searches and uploads on a real Ray cluster of several nodes, one of which is killed while it
works and one of which has another compiler. The nodes are processes of this machine. The chip is a
drawn one with a simulator, so that nothing is timed during other work.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from api.cli.target import CommandTarget, read_settings
from api.web import pages
from benchmarks.processes import descendants, kill_tree
from ingestion.uploads import FileUpload
from kb.catalog import tables as t
from kb.cluster import Cluster, WorkLost, connect_to_cluster
from kb.data_dir import private_folder
from kb.errors import Unavailable
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.bench import cluster as on_cluster
from optimizer.search.bench import on_node
from optimizer.search.bench.cluster import SimulatedOnCluster
from optimizer.search.bench.on_node import NodeWork, node_folder
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.goal import Goal
from optimizer.search.runs.optimize import optimize
from optimizer.search.runs.places import ClusterPlaces, bench_for, cluster_places, places_for
from optimizer.search.runs.run_store import run_store
from optimizer.search.runs.sessions import PACKAGES
from optimizer.search.tree import Tree
from tests.api.cli_process import BARRIERS, MEMORY, kernlore
from tests.ingestion.samples.drawn_chips import CHIPS, EXAMPLE
from tests.optimizer.search.landscape import RecordingListener
from tests.shared import copy_knowledge, place_models
from tests.waiting import until

pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernlore[ray]'")

pytestmark = pytest.mark.slow(seconds=80)

SEED = 7
CHIP = f"nova-{SEED}"
MATMUL = EXAMPLE / "problems" / "matmul.py"
SIMULATOR = EXAMPLE / "novasim.py"
# So that a node is killed before its evaluation ends.
SLOW_SIMULATOR = """\
import runpy, time
time.sleep(0.3)
runpy.run_path({simulator!r}, run_name="__main__")
"""
MEMORY_BYTES = 80_000_000  # object store of a node: Ray takes at least 78.6 MB
CANDIDATES = 5
OTHER_COMPILER = "#!/bin/sh\necho 'g++ (Other) 1.2.3'\n"


class Nodes:
    """A cluster whose nodes have a chip each; one of them has another g++."""

    def __init__(self, other_compiler: Path) -> None:
        from ray.cluster_utils import Cluster as LocalCluster

        (Path(os.environ["RAY_TMPDIR"]) / "ray").mkdir(exist_ok=True)
        head = {"num_cpus": 0, "object_store_memory": MEMORY_BYTES, "include_dashboard": False}
        # Unused here, and each is a process that takes CPU time.
        head |= {"include_log_monitor": False, "no_monitor": True}
        self._cluster = LocalCluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._add(), self._add()]
        self._add(env_vars={"PATH": f"{other_compiler}{os.pathsep}{os.environ['PATH']}"})
        self.address: str = self._cluster.address

    def _add(self, **given: Any) -> Any:
        return self._cluster.add_node(
            num_cpus=1,
            resources={"npu": 1},
            labels={"npu": CHIP, "cpu_model": "x86-64"},
            object_store_memory=MEMORY_BYTES,
            **given,
        )

    def kill(self, id: str) -> None:
        """As in a power failure: no process of the node ends cleanly."""
        dead = next(node for node in self._nodes if node.node_id == id)
        self._nodes.remove(dead)
        # With its tasks, which might otherwise still answer until they notice.
        kill_tree(dead.all_processes["raylet"][0].process.pid)
        self._cluster.remove_node(dead, allow_graceful=False)

    def at_least(self, count: int) -> None:
        """Replace killed nodes until this many of a kind run: each costs four CPU seconds."""
        while len(self._nodes) < count:
            self._nodes.append(self._add())

    def killable(self) -> list[str]:
        return [str(node.node_id) for node in self._nodes]

    def processes(self) -> list[int]:
        """The processes that a killable node has started."""
        return list(descendants(self._nodes[0].all_processes["raylet"][0].process.pid))

    def close(self) -> None:
        self._cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[Nodes]:
    place = tmp_path_factory.mktemp("other")
    # The query model exported once by a node. Otherwise each process imports sentence-transformers,
    # which takes eight seconds, to embed some dozen passages.
    for exported in model_cache.iterdir():
        if not (remaining := private_folder(node_folder()) / exported.name).exists():
            remaining.symlink_to(exported)
    (place / "g++").write_text(OTHER_COMPILER)
    (place / "g++").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # independent of the user's token
        # A node keeps idle task processes for up to one CPU. Without this they end after a second,
        # and each task imports everything again.
        patch.setenv("RAY_idle_worker_killing_time_threshold_ms", "300000")
        # On a busy machine a node would end itself or its tasks because of other processes: its
        # agents take more than half a minute to start, or memory is almost full.
        patch.setenv("RAY_agent_register_timeout_ms", "300000")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        patch.setenv("REPORTER_UPDATE_INTERVAL_MS", "3600000")  # dashboard metrics
        # Sockets of a node are below it, with a limited path length.
        patch.setenv("RAY_TMPDIR", tempfile.mkdtemp(prefix="kr", dir="/tmp"))
        started = Nodes(place)
        yield started
        started.close()
        shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)


@pytest.fixture(scope="class")
def cluster(nodes: Nodes) -> Iterator[Cluster]:
    """One connection for the tests of a class: each has separate processes on every node, which
    import torch. A process has one at a time.
    """
    nodes.at_least(2)
    with connect_to_cluster(nodes.address, PACKAGES) as connection:
        yield connection


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[CommandTarget]:
    """A data directory with the chip and its manual, and no other knowledge: for a chip with its
    own language all built-in documents would be read again.
    """
    folder = tmp_path_factory.mktemp("chip")
    place_models(folder / "data", model_cache)
    CHIPS.write(SEED, folder / "chip")
    known = read_settings(folder / "data")
    few = copy_knowledge(folder / "knowledge", ("guidance/memory-bound.md",))
    local = CommandTarget(known.model_copy(update={"knowledge_dir": few}))
    slow = folder / "novasim.py"
    slow.write_text(SLOW_SIMULATOR.format(simulator=str(SIMULATOR)), encoding="utf-8")
    described = (folder / "chip" / "hardware.toml").read_text(encoding="utf-8")
    assert str(SIMULATOR) in described
    described = described.replace(str(SIMULATOR), str(slow))
    local.services.register_hardware(tomllib.loads(described), "hardware.toml")
    manual = CHIPS.manual(CHIPS.draw(SEED))
    local.services.uploads.submit(FileUpload("manual.md", manual.encode(), hardware=(CHIP,)))
    with local.services.local_reader() as reader:
        local.services.worker(reader).read_all(threading.Event())
    yield local
    local.close()


@contextmanager
def killing(nodes: Nodes, state: Callable[[], Mapping[str, Any]]) -> Iterator[list[str]]:
    """Kill a node as soon as it evaluates; its id is then in the list."""
    killed: list[str] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02) and not killed:
            rows = dict(state()["nodes"])
            if sum(row["evaluated"] for row in rows.values()) < 2:
                continue  # the baseline of all comparisons
            for host, row in rows.items():
                at = next((n for n in nodes.killable() if n.startswith(host.split("/")[1])), None)
                if at is not None and row["evaluating"]:
                    killed.append(at)
                    nodes.kill(at)
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


@contextmanager
def losing_a_survey(nodes: Nodes) -> Iterator[list[int]]:
    """Kill the process of a node survey once; its id is then in the list."""
    lost: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for pid in nodes.processes():
                if b"ray::survey" in _command_of(pid):
                    os.kill(pid, signal.SIGKILL)
                    lost.append(pid)
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join()


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def places(local: CommandTarget, cluster: Cluster, language: str = "novac") -> ClusterPlaces:
    messages: list[str] = []
    hardware = CHIP if language == "novac" else "x86-64"
    return cluster_places(local.services, cluster, hardware, language, messages.append)


class TestOneConnection:
    def test_two_compiler_versions_share_no_run(
        self, nodes: Nodes, cluster: Cluster, chip: CommandTarget
    ) -> None:
        nodes.at_least(2)
        with losing_a_survey(nodes) as lost:
            there = places(chip, cluster, "cpp")
        assert lost  # and the node was surveyed again
        left_out = there.activity.state["left_out"]
        assert there.slots.count == len(there.hosts) == 2, left_out
        (why,) = left_out.values()
        assert "(Other) 1.2.3" in why and "instead of" in why
        # A node exchanged during the run is detected by its first candidate.
        novac = places(chip, cluster)
        with (
            pytest.MonkeyPatch.context() as patch,
            novac.bench(chip.services, load_problem(MATMUL), lambda text: None) as bench,
        ):
            assert isinstance(bench, SimulatedOnCluster)
            patch.setattr(on_cluster, "NO_NODE_SECONDS", 1.0)
            patch.setattr(on_cluster, "LOOK_SECONDS", 0.2)
            patch.setattr(bench.nodes.environment.__class__, "difference", lambda *_: "other")
            bench.nodes.environment = _other(bench.nodes.environment)
            with pytest.raises(Unavailable, match="no node with npu"):
                bench.nodes.measure(NodeWork("reference"), "the reference")
            assert set(bench.nodes.activity.state["left_out"].values()) == {"other"}

    def test_killed_node_loses_only_its_candidate(
        self, nodes: Nodes, cluster: Cluster, chip: CommandTarget
    ) -> None:
        nodes.at_least(2)
        services = chip.services
        goal = Goal(language="novac", candidates=CANDIDATES)
        listener = RecordingListener()
        there = places(chip, cluster)
        assert there.slots.count == 3
        with killing(nodes, lambda: there.activity.state) as killed:
            finished = optimize(services, MATMUL, goal, CHIP, listener, cluster=there)
        assert killed, "no node was killed while it evaluated"
        tree = finished.tree
        assert {node.verdict for node in tree} == {"correct"}
        assert len(tree) == CANDIDATES + 1 and finished.run.state == "finished"
        assert finished.outcome.gain is not None
        stored = run_store(services).run(finished.run.id).cluster
        assert stored["lost"] >= 1 and stored["address"] == nodes.address
        evaluated = sum(row["evaluated"] for row in stored["nodes"].values())
        assert evaluated >= CANDIDATES
        assert all(row["evaluating"] == 0 for row in stored["nodes"].values())
        # It is stored under the key of this machine, which does not evaluate it again.
        problem, here = load_problem(MATMUL), places_for(services, CHIP, "novac")
        with bench_for(services, problem, here) as bench:
            assert isinstance(bench, SimulatedBench)
            proposal = tree[1].proposal
            assert proposal is not None
            same = bench.measure(proposal.bundle, bench.cases(proposal), fresh=False)
            measured = next(e for e in _evaluations(tree) if e.candidate == same.candidate)
            assert same.seconds == measured.seconds  # those of the node
        macros: Any = pages._environment().get_template("run_parts.html").module
        shown = macros.cluster(stored, "finished")
        assert "began again" in shown and next(iter(stored["nodes"])) in shown

    def test_closed_connection_starts_no_new_cluster(self, cluster: Cluster) -> None:
        """The last test of its class: no later one uses this connection."""
        import ray

        sent = cluster.send(on_node.survey, None, name="nothing", options={"num_cpus": 1})
        cluster.close()
        with pytest.raises(WorkLost, match="closed"):
            sent.wait_for_value(0.1)
        cluster.finish(sent)
        sent.cancel()
        assert sent.wait_for_end(0.1) and cluster.nodes() == []
        assert not ray.is_initialized()


def _evaluations(tree: Tree) -> Iterator[Evaluation]:
    return (node.evaluation for node in tree if node.evaluation is not None)


def test_several_problems_are_searched_concurrently(
    nodes: Nodes, chip: CommandTarget, tmp_path: Path
) -> None:
    other = tmp_path / "larger.py"
    other.write_text(MATMUL.read_text(encoding="utf-8").replace("64", "96"), encoding="utf-8")
    options = ("--hardware", CHIP, "--language", "novac", "--candidates", "2", "--json")
    request = ("optimize", MATMUL, other, *options, "--ray", nodes.address, "-o", tmp_path / "out")
    nodes.at_least(1)
    only_manual = {"KERNLORE_KNOWLEDGE_DIR": str(chip.settings.knowledge_dir)}
    done = kernlore(*request, data=chip.settings.data_dir, environment=only_manual)
    assert done.code == 0, done.err
    assert [(a["problem"], a["state"]) for a in done.json] == [
        ("matmul", "finished"),
        ("larger", "finished"),
    ]
    assert all(Path(answer["kernel"]).is_file() for answer in done.json)
    for answer in done.json:
        assert run_store(chip.services).run(answer["run"]).cluster["address"] == nodes.address


def _other(environment: Any) -> Any:
    from dataclasses import replace

    return replace(environment, versions=(("novac", "command of yesterday"),))


def test_files_are_read_and_embedded_on_nodes_as_locally(
    nodes: Nodes, tmp_path: Path, model_cache: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(4):
        (files / f"memory-{number}.md").write_text(MEMORY.replace("16 bytes", f"{number} bytes"))
    (files / "barriers.rst").write_text(BARRIERS)
    (files / "broken.pdf").write_bytes(b"%PDF-1.7 nothing follows")
    vectors = {}
    for name, options in (("here", ()), ("there", ("--ray", nodes.address))):
        data = tmp_path / name / "data"
        place_models(data, model_cache)
        sent = kernlore("ingest", files, "--hardware", "h100", "--json", *options, data=data)
        assert sent.code == 1, sent.err
        assert sent.json["summary"]["ready"] == 5 and sent.json["summary"]["failed"] == 1
        vectors[name] = _vectors(data)
    assert list(vectors["here"]) == list(vectors["there"])
    for text, vector in vectors["here"].items():
        assert float(vector @ vectors["there"][text]) > 0.999


def test_files_of_a_killed_node_are_read_on_another(
    nodes: Nodes, tmp_path: Path, model_cache: Path
) -> None:
    nodes.at_least(1)
    local = CommandTarget(read_settings(place_models(tmp_path / "data", model_cache)))
    services = local.services
    for number in range(12):
        text = MEMORY.replace("16 bytes", f"{number} bytes")
        services.uploads.submit(
            FileUpload(f"memory-{number}.md", text.encode(), hardware=("h100",))
        )
    with connect_to_cluster(nodes.address, ("kb", "ingestion")) as cluster:
        local.read_on(cluster)
        with local.reading():
            until(lambda: services.jobs.counts().get("running", 0) > 0)
            nodes.kill(nodes.killable()[0])
            until(lambda: not services.jobs.counts().get("queued", 0) and _idle(services))
    assert services.jobs.counts()["ready"] == 12
    embedded, passages = services.vectors()
    assert embedded == passages > 0
    local.close()


def _idle(services: Any) -> bool:
    return not services.jobs.counts().get("running", 0)


def _vectors(data: Path) -> dict[str, Any]:
    """The stored vectors by the digest of their text."""
    local = CommandTarget(read_settings(data))
    with local.services.catalog.read() as connection:
        rows = connection.execute(
            sa.select(t.embeddings.c.text_sha256, t.embeddings.c.vector).order_by(
                t.embeddings.c.text_sha256
            )
        ).all()
    local.close()
    return {row.text_sha256: np.frombuffer(row.vector, np.float32) for row in rows}
