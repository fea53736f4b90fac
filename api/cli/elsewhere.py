"""`--ray`: the cluster of a command, and the places of a search there. Without it nothing of Ray is
imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.cli.output import note

if TYPE_CHECKING:
    from kb.cluster import Cluster
    from optimizer.search.goal import Goal
    from optimizer.search.runs.places import ClusterPlaces
    from optimizer.search.synthesizers.llm.settings import ModelOptions
    from retrieval.knowledge_base import KnowledgeBase

SEARCHING = ("kb", "retrieval", "optimizer")  # packages of this program that nodes import
READING = ("kb", "ingestion")


@dataclass(frozen=True)
class Asked:
    """What is asked of every problem; `ray` is the address of a cluster, None for this machine."""

    goal: Goal
    hardware: str
    models: ModelOptions
    ray: str | None


@contextmanager
def cluster_at(address: str, packages: tuple[str, ...]) -> Iterator[Cluster]:
    """A connection to the cluster, whose dashboard is named."""
    from kb.cluster import connect_to_cluster

    with connect_to_cluster(address, packages) as cluster:
        note(f"dashboard of the cluster: {cluster.dashboard or 'none is running'}")
        yield cluster


@contextmanager
def places_on(
    base: KnowledgeBase, address: str | None, hardware: str, language: str | None
) -> Iterator[ClusterPlaces | None]:
    """The places of a search on the cluster at an address; None without one."""
    if address is None:
        yield None
        return
    from optimizer.search.runs.places import cluster_places

    with cluster_at(address, SEARCHING) as cluster:
        there = cluster_places(base, cluster, hardware, language, note)
        note(
            f"{there.slots.count} places for {there.hardware} on {', '.join(there.hosts)}"
            f" ({there.slots.resource} {there.slots.amount:g} each)"
        )
        yield there


def words_of(there: ClusterPlaces | None) -> Callable[[], str] | None:
    """What the nodes of a search do, in a few words; None where there are none."""
    return None if there is None else there.activity.text
