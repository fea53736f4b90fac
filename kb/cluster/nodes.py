"""Which nodes of a cluster have which hardware, by the labels that they were started with.

A label says which chip a node has (`gpu_model=h200`, `npu=mychip`, `cpu_model=x86-64`), a resource
how many of them. Knows nothing of Ray beyond the form of its rows, and nothing of what runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kb.errors import InvalidRequest, Unavailable

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
