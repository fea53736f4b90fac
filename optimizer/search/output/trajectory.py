"""A run as JSON lines, one a candidate: state (what was shown), action (what was proposed) and
reward with where it comes from. Knows nothing of who learns from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optimizer.evaluation.records import Evaluation
from optimizer.search.records import Node
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree

FORMAT = 1


def write_trajectory(run: RunRow, tree: Tree, path: Path) -> None:
    """The reference is a line too: its action is null."""
    with path.open("w", encoding="utf-8") as stream:
        for node in tree:
            stream.write(json.dumps(_line(run, tree, node)) + "\n")


def _line(run: RunRow, tree: Tree, node: Node) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run": run.id,
        "problem_sha256": run.problem_sha256,
        "hardware": run.hardware,
        "node": node.number,
        "parent": node.parent,
        "state": _state(tree, node),
        "action": _action(node),
        "reward": _reward(node),
        "at_seconds": node.at,
    }


def _state(tree: Tree, node: Node) -> dict[str, Any]:
    """Of the parent when this was proposed."""
    parent = tree[node.parent] if node.parent is not None else None
    return {
        "shown": asdict(node.shown),
        "parent_signals": list(parent.signals) if parent else [],
        "parent_speedup": _interval(parent) if parent else None,
        "inherited": node.inherited,
    }


def _action(node: Node) -> dict[str, Any] | None:
    proposal = node.proposal
    if proposal is None:
        return None
    bundle = proposal.bundle
    return {
        "plan": proposal.plan,
        "synthesizer": proposal.synthesizer,
        "model": proposal.model,
        "origin": proposal.origin,
        "recipe": proposal.recipe,
        "values": dict(proposal.values),
        "parameters": dict(bundle.parameters),
        "language": bundle.language,
        "entry": bundle.entry,
        "main": bundle.main,
        "source": dict(bundle.files),
        "bundle_sha256": bundle.sha256,
        "claimed": list(proposal.claimed),
        "attributed": list(proposal.attributed),
        "cases": list(proposal.cases),
        "cost": asdict(proposal.cost),
        "transcript": proposal.transcript,
    }


def _reward(node: Node) -> dict[str, Any]:
    """value: the lower bound of the speed-up; None where nothing is known of it, which is not 0."""
    found = node.evaluation
    known = node.state == "evaluated" and found is not None
    failed = known and found is not None and not found.correct
    value = node.speedup.low if known and node.correct and node.speedup else None
    return {
        "state": node.state,
        "same_as": node.same_as,
        "value": 0.0 if failed else value,
        "speedup": _interval(node),
        "provenance": _provenance(found) if found is not None else None,
        "problem": node.problem,
        "attempts": node.attempts,
    }


def _provenance(found: Evaluation) -> dict[str, Any]:
    return {
        "evaluation": found.key,
        "harness": found.harness,
        "toolchain": found.toolchain,
        "device": found.device,
        "validity": found.validity,
        "timing": found.timing,
        "reached": found.reached,
        "message": found.message,
        "checks": len(found.checks),
        "checks_passed": sum(check.ok for check in found.checks),
        "flags": [asdict(flag) for flag in found.flags],
        "signals": list(found.verdict.signal_ids),
        "isolation": found.isolation.level if found.isolation else None,
    }


def _interval(node: Node) -> Mapping[str, Any] | None:
    return asdict(node.speedup) if node.speedup is not None else None
