"""The content of report.json. Every speed-up has its interval and its number of pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Interval
from optimizer.search.confirm import RunOutcome
from optimizer.search.records import Node, Proposal, best_of
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree, rough_best, rough_of

FORMAT = 1


def account(run: RunRow, tree: Tree, outcome: RunOutcome, problem: Problem) -> dict[str, Any]:
    """The report of a run as JSON, without the plots."""
    from optimizer.search.output.module import (
        wins,  # loads torch, which the rest here does not need
    )

    device = next((n.evaluation.device for n in tree if n.evaluation is not None), "not known")
    return {
        "format": FORMAT,
        "run": run.id,
        "problem": {
            "name": problem.name,
            "op": problem.op,
            "summary": problem.summary,
            "sha256": problem.sha256,
            "precision": problem.policy.precision,
        },
        "hardware": run.hardware,
        "device": device,
        "environment": dict(run.environment),
        "goal": run.goal.as_json(),
        "state": run.state,
        "ended": run.ended,
        "started_at": run.started_at,
        "seconds": run.seconds,
        "baseline": tree.baseline_text.removeprefix("baseline: "),
        "result": _result_data(tree, outcome),
        "cases": [
            {
                "case": figure.case,
                "held_out": figure.held_out,
                "speedup": asdict(figure.speedup),
                "wins": wins(figure),
            }
            for figure in outcome.figures
        ],
        "verdicts": _verdicts_data(tree),
        "candidates": _candidates_data(tree),
        "path": _path_data(tree, outcome.node),
        "models": _models_data(tree),
        "not_measured": _not_measured(tree, outcome, problem, device),
    }


# -- the result


def _result_data(tree: Tree, outcome: RunOutcome) -> dict[str, Any]:
    """The gain and what it is over, and how much of it the run started with."""
    inherited = outcome.inherited
    return {
        "winner": outcome.node,
        "reason": outcome.reason,
        "best_so_far": outcome.best_so_far,
        "measured": outcome.measured,
        "gain": _told(outcome.gain),
        "over": outcome.over,
        "clock": outcome.clock,
        "inherited": _told(inherited),
        "new": _told(_new(tree, outcome)),
        "search_figure": _told(tree[outcome.node].speedup) if outcome.node is not None else None,
    }


def _new(tree: Tree, outcome: RunOutcome) -> Interval | None:
    """Gain over what was inherited; the two measurements are independent. None where the winner is
    itself inherited or there is none."""
    gain, before = outcome.gain, outcome.inherited
    if gain is None or outcome.node is None or tree[outcome.node].inherited:
        return None
    if before is None or before.value <= 1.0:
        return gain
    centre = math.log(gain.value / before.value)
    half = math.hypot(*(math.log(i.high / i.low) / 2 for i in (gain, before)))
    n = min(gain.n, before.n)
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half), n)


def _told(interval: Interval | None) -> dict[str, Any] | None:
    return asdict(interval) if interval is not None else None


# -- candidates


def _verdicts_data(tree: Tree) -> dict[str, dict[str, int]]:
    """Counts of the candidates' outcomes and of their leading signals, without the reference."""
    nodes = tree.nodes[1:]
    return {
        "outcomes": dict(Counter(node.verdict for node in nodes).most_common()),
        "signals": dict(Counter(node.signals[0] for node in nodes if node.signals).most_common()),
    }


def _candidates_data(tree: Tree) -> list[dict[str, Any]]:
    """Counts and the best speed-up by origin, synthesizer and recipe."""
    groups: dict[tuple[str, str, str], list[Node]] = {}
    for node in tree:
        if node.proposal is not None:
            proposal = node.proposal
            key = (proposal.origin, proposal.synthesizer, proposal.recipe or "")
            groups.setdefault(key, []).append(node)
    return [
        {
            "origin": origin,
            "synthesizer": synthesizer,
            "recipe": recipe or None,
            **_counts(nodes, tree),
        }
        for (origin, synthesizer, recipe), nodes in sorted(groups.items())
    ]


def _counts(nodes: Sequence[Node], tree: Tree) -> dict[str, Any]:
    """Counts of a group of candidates; `failures` counts by kind whatever is not a correct
    kernel. `rough` is what is known of a group that has no figure."""
    failures = Counter(node.verdict for node in nodes if not node.correct)
    best = best_of(nodes)
    return {
        "n": len(nodes),
        "correct": sum(node.correct for node in nodes),
        "failures": dict(failures.most_common()),
        "best": _told(best.speedup) if best is not None else None,
        "best_node": best.number if best is not None else None,
        "best_is_baseline": best is not None and best is tree.baseline,
        "rough": rough_best(nodes) if best is None else "",
    }


def _models_data(tree: Tree) -> list[dict[str, Any]]:
    """Cost and counts of each model. `usd` is the known cost in USD; `usd_unknown` counts unpriced
    proposals."""
    groups: dict[str, list[Node]] = {}
    for node in tree:
        if node.proposal is not None and node.proposal.model is not None:
            groups.setdefault(node.proposal.model, []).append(node)
    return [
        {"model": m, **_cost(nodes), **_counts(nodes, tree)} for m, nodes in sorted(groups.items())
    ]


def _cost(nodes: Iterable[Node]) -> dict[str, Any]:
    costs = [node.proposal.cost for node in nodes if node.proposal is not None]
    return {
        "tokens_in": sum(cost.tokens_in for cost in costs),
        "tokens_out": sum(cost.tokens_out for cost in costs),
        "seconds": round(sum(cost.seconds for cost in costs), 3),
        "usd": round(sum(cost.usd or 0.0 for cost in costs), 6),
        "usd_unknown": sum(cost.usd is None for cost in costs),
    }


# -- from the reference to the winner


def path_to(tree: Tree, number: int | None) -> list[Node]:
    """The nodes from the reference to this node; empty without a winner."""
    if number is None:
        return []
    return [*reversed(tree.ancestors(number)), tree[number]]


def _path_data(tree: Tree, winner: int | None) -> list[dict[str, Any]]:
    nodes = path_to(tree, winner)
    return [_step_data(before, after) for before, after in pairwise(nodes)]


def _step_data(before: Node, after: Node) -> dict[str, Any]:
    proposal = after.proposal
    assert proposal is not None
    return {
        "from": before.number,
        "to": after.number,
        "inherited": after.inherited,
        "plan": proposal.plan,
        "origin": proposal.origin,
        "synthesizer": proposal.synthesizer,
        "recipe": proposal.recipe,
        "changes": _changes(before.proposal, proposal),
        "speedup_before": _told(before.speedup),
        "speedup_after": _told(after.speedup),
        "signals_before": list(before.signals),
        "signals_after": list(after.signals),
        "shown": asdict(after.shown),
        "claimed": list(proposal.claimed),
        "attributed": list(proposal.attributed),
    }


def _changes(before: Proposal | None, after: Proposal) -> dict[str, list[Any]]:
    """Value -> [before, after]; None where there was none."""
    old, new = _values(before), _values(after)
    names = [*new, *(name for name in old if name not in new)]
    return {n: [old.get(n), new.get(n)] for n in names if old.get(n) != new.get(n)}


def _values(proposal: Proposal | None) -> dict[str, Any]:
    if proposal is None:
        return {}
    return dict(proposal.values) or dict(proposal.bundle.parameters)


# -- what is not known


def _not_measured(tree: Tree, outcome: RunOutcome, problem: Problem, device: str) -> list[str]:
    lines = list(outcome.notes)
    for node in tree:
        lines += _unknown(node)
    elsewhere = [case.name for case in problem.cases if not case.fits(device)]
    if elsewhere:
        lines.append(f"cases for another device: {', '.join(elsewhere)}")
    if outcome.figures and not any(figure.held_out for figure in outcome.figures):
        lines.append("no held-out case was measured")
    return lines


def _unknown(node: Node) -> list[str]:
    name = "the reference" if node.parent is None else f"node {node.number}"
    if node.state == "duplicate":
        return [f"{name}: the same kernel as node {node.same_as}, not measured again"]
    if node.state == "failed":
        return [f"{name}: {node.attempts} attempts failed outside the kernel: {node.problem}"]
    evaluation = node.evaluation
    reasons = [t.reason for t in evaluation.timings if t.reason] if evaluation is not None else []
    if node.state == "unmeasured":
        why = "; ".join(reasons) or "the machine was busy"
        rough = f", {text}" if (text := rough_of(node)) else ""
        return [f"{name}: correct, not measured{rough}: {why}"]
    missing = evaluation.verdict.not_measured if evaluation is not None else {}
    return [f"{name}: {tool}: {why}" for tool, why in missing.items()]


def model_costs(tree: Tree) -> dict[str, dict[str, Any]]:
    """Candidates, tokens and cost in USD by model; the cost is None where a price is not known. The
    cost of failed attempts is part of the next candidate's."""
    rows: dict[str, dict[str, Any]] = {}
    for proposal in (node.proposal for node in tree if node.proposal is not None):
        if proposal.model is None:
            continue
        none_yet = {"candidates": 0, "tokens_in": 0, "tokens_out": 0, "usd": 0.0}
        row, cost = rows.setdefault(proposal.model, none_yet), proposal.cost
        row["candidates"] += 1
        row["tokens_in"] += cost.tokens_in
        row["tokens_out"] += cost.tokens_out
        unknown = row["usd"] is None or cost.usd is None
        row["usd"] = None if unknown else row["usd"] + cost.usd
    return rows
