"""Selection of cluster nodes by their labels and resources; errors where none matches."""

from __future__ import annotations

import sys

import pytest

from kb.cluster import ClusterNode, connect_to_cluster, living_nodes, only_hardware, slots_for
from kb.errors import InvalidRequest, Unavailable

KNOWN = {"h200": "h200", "H200": "h200", "mychip": "mychip", "x86-64": "x86-64"}


def node(name: str, labels: dict[str, str], **resources: float) -> ClusterNode:
    return ClusterNode(name, name, {**labels, "ray.io/node-id": name}, resources)


GPUS = node("a", {"gpu_model": "h200"}, CPU=16, GPU=8)
DETECTED = node("b", {"ray.io/accelerator-type": "H200"}, CPU=16, GPU=4)
CHIPS = node("c", {"npu": "mychip"}, CPU=4, npu=2)
PROCESSORS = node("d", {"cpu_model": "x86-64"}, CPU=8)
SMALLER = node("e", {"cpu_model": "x86-64"}, CPU=4)
EMPTY = node("f", {"gpu_model": "h200"}, CPU=16)


@pytest.mark.parametrize(
    ("nodes", "hardware", "count", "options"),
    [
        ([GPUS, CHIPS, EMPTY], "h200", 8, {"num_cpus": 0, "num_gpus": 1.0}),
        ([DETECTED], "h200", 4, {"num_cpus": 0, "num_gpus": 1.0}),
        ([CHIPS, GPUS], "mychip", 2, {"num_cpus": 0, "resources": {"npu": 1.0}}),
        ([PROCESSORS, SMALLER], "x86-64", 3, {"num_cpus": 4}),
    ],
    ids=["gpu", "gpu that Ray has found", "chip", "processors"],
)
def test_label_selects_nodes_and_resource_counts_slots(
    nodes: list[ClusterNode], hardware: str, count: int, options: dict[str, object]
) -> None:
    slots = slots_for(nodes, hardware, KNOWN.get)
    assert slots.count == count
    request = slots.options()
    selector = request.pop("label_selector")
    assert request == options
    assert selector == {slots.label: f"in({','.join(slots.values)})"}


def test_nodes_with_other_detected_hardware_are_excluded() -> None:
    selector = slots_for([CHIPS], "mychip", KNOWN.get).options(["b", "a"])["label_selector"]
    assert selector["ray.io/node-id"] == "!in(a,b)"


def test_undeclared_hardware_error_lists_declared_ones() -> None:
    with pytest.raises(Unavailable, match="mychip, x86-64") as error:
        slots_for([CHIPS, PROCESSORS], "h200", KNOWN.get)
    assert "--labels=gpu_model=ID" in error.value.hint


def test_auto_needs_cluster_with_one_hardware() -> None:
    assert only_hardware([GPUS, DETECTED], KNOWN.get) == "h200"
    with pytest.raises(InvalidRequest, match="h200, mychip"):
        only_hardware([GPUS, CHIPS], KNOWN.get)
    with pytest.raises(Unavailable):
        only_hardware([EMPTY], KNOWN.get)


def test_dead_nodes_do_not_count() -> None:
    row = {"NodeID": "abcdef123", "NodeManagerHostname": "host", "Labels": {}, "Resources": {}}
    alive = living_nodes([{**row, "Alive": True}, {**row, "Alive": False}])
    assert [n.name for n in alive] == ["host/abcdef"]


def test_missing_ray_error_names_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unavailable) as error, connect_to_cluster("auto", ()):
        pass
    assert error.value.hint == "pip install 'kernlore[ray]'"


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port", ""])
def test_invalid_address_is_refused(address: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernlore[ray]'")
    with pytest.raises(InvalidRequest, match="--ray"), connect_to_cluster(address, ()):
        pass


def test_closed_port_is_reported_at_once() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernlore[ray]'")
    with pytest.raises(Unavailable, match="no Ray cluster"), connect_to_cluster("127.0.0.1:9", ()):
        pass
