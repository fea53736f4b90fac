"""The report of a run: report.json as data, report.md as text, plots, and the trajectory.

The trajectory is JSON lines, one per candidate: state (the shown knowledge), action (the proposal)
and reward with its provenance. In the report every speed-up has its interval and number of pairs.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from kb.hardware.spec import COST_KINDS
from kb.plain import plain
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.search.confirm import RunOutcome
from optimizer.search.output.plots import write_plots
from optimizer.search.records import Node, Proposal, best_of
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree, rough_best, rough_of

FORMAT = 1
TRAJECTORY = "trajectory.jsonl"
Rows = Sequence[Sequence[str]]
CAPTIONS = {
    "progress": "Speed-up of every candidate with its 95 % interval, and the best so far",
    "tree": "The search tree; the thick path leads to the winner",
    "roofline": "Shares of the measured ceilings, of the reference and the winner",
}


def write_report(
    run: RunRow, tree: Tree, outcome: RunOutcome, problem: Problem, folder: Path
) -> Path:
    """Write report.md, report.json, trajectory.jsonl and plots/ into `folder`; returns the path of
    report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    content = account(run, tree, outcome, problem)
    plots = write_plots(tree, outcome.node, folder / "plots")
    content["plots"] = {name: f"plots/{path.name}" for name, path in plots.drawn.items()}
    content["not_measured"] += [f"plot {name}: {why}" for name, why in plots.left_out.items()]
    write_trajectory(run, tree, folder / TRAJECTORY)
    (folder / "report.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    path = folder / "report.md"
    path.write_text(rendered(content), encoding="utf-8")
    return path


# -- report.json


def account(run: RunRow, tree: Tree, outcome: RunOutcome, problem: Problem) -> dict[str, Any]:
    """The report of a run as JSON, without the plots."""
    from optimizer.search.output.module import wins  # loads torch

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
        "goal": asdict(run.goal),
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


def _result_data(tree: Tree, outcome: RunOutcome) -> dict[str, Any]:
    """The gain, its baseline, and the part of it that was inherited."""
    inherited = outcome.inherited
    return {
        "winner": outcome.node,
        "reason": outcome.reason,
        "best_so_far": outcome.best_so_far,
        "measured": outcome.measured,
        "gain": plain(outcome.gain),
        "over": outcome.over,
        "clock": outcome.clock,
        "inherited": plain(inherited),
        "new": plain(_new(tree, outcome)),
        "search_figure": plain(tree[outcome.node].speedup) if outcome.node is not None else None,
    }


def _new(tree: Tree, outcome: RunOutcome) -> Interval | None:
    """Gain over the inherited winner, from two independent measurements; None if the winner is
    inherited or missing."""
    gain, before = outcome.gain, outcome.inherited
    if gain is None or outcome.node is None or tree[outcome.node].inherited:
        return None
    if before is None or before.value <= 1.0:
        return gain
    centre = math.log(gain.value / before.value)
    half = math.hypot(*(math.log(i.high / i.low) / 2 for i in (gain, before)))
    n = min(gain.n, before.n)
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half), n)


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
    """Counts of a group of candidates; `failures` counts incorrect ones by verdict. `rough` is the
    best rough figure of a group without a figure."""
    failures = Counter(node.verdict for node in nodes if not node.correct)
    best = best_of(nodes)
    return {
        "n": len(nodes),
        "correct": sum(node.correct for node in nodes),
        "failures": dict(failures.most_common()),
        "best": plain(best.speedup) if best is not None else None,
        "best_node": best.number if best is not None else None,
        "best_is_baseline": best is not None and best is tree.baseline,
        "rough": rough_best(nodes) if best is None else "",
    }


def _models_data(tree: Tree) -> list[dict[str, Any]]:
    """Cost and counts of each model. `usd` is the known cost; `usd_unknown` counts proposals
    without a price."""
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


def _path_data(tree: Tree, winner: int | None) -> list[dict[str, Any]]:
    """The steps from the reference to the winner."""
    nodes = tree.path_to(winner) if winner is not None else []
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
        "speedup_before": plain(before.speedup),
        "speedup_after": plain(after.speedup),
        "signals_before": list(before.signals),
        "signals_after": list(after.signals),
        "shown": asdict(after.shown),
        "claimed": list(proposal.claimed),
        "attributed": list(proposal.attributed),
    }


def _changes(before: Proposal | None, after: Proposal) -> dict[str, list[Any]]:
    """Value -> [before, after]; None for a missing value."""
    old, new = _values(before), _values(after)
    names = [*new, *(name for name in old if name not in new)]
    return {n: [old.get(n), new.get(n)] for n in names if old.get(n) != new.get(n)}


def _values(proposal: Proposal | None) -> dict[str, Any]:
    if proposal is None:
        return {}
    return dict(proposal.values) or dict(proposal.bundle.parameters)


def _not_measured(tree: Tree, outcome: RunOutcome, problem: Problem, device: str) -> list[str]:
    lines = list(outcome.notes)
    for node in tree:
        lines += _unknown(node)
    others = [case.name for case in problem.cases if not case.fits(device)]
    if others:
        lines.append(f"cases for another device: {', '.join(others)}")
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
    """Candidates, tokens and cost in USD by model; the cost: None if a price is unknown. The cost
    of failed attempts is part of the next candidate's."""
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


# -- trajectory


def write_trajectory(run: RunRow, tree: Tree, path: Path) -> None:
    """Write the trajectory, one line for each node; the reference's action is null."""
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
    """The state of the parent when the node was proposed."""
    parent = tree[node.parent] if node.parent is not None else None
    return {
        "shown": asdict(node.shown),
        "parent_signals": list(parent.signals) if parent else [],
        "parent_speedup": plain(parent.speedup) if parent else None,
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
    """The reward: `value` is the lower bound of the speed-up, 0 for a failed candidate, None if
    unknown."""
    evaluation = node.evaluation
    known = node.state == "evaluated" and evaluation is not None
    failed = known and evaluation is not None and not evaluation.correct
    value = node.speedup.low if known and node.correct and node.speedup else None
    return {
        "state": node.state,
        "same_as": node.same_as,
        "value": 0.0 if failed else value,
        "speedup": plain(node.speedup),
        "provenance": _provenance(evaluation) if evaluation is not None else None,
        "problem": node.problem,
        "attempts": node.attempts,
    }


def _provenance(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "evaluation": evaluation.key,
        "harness": evaluation.harness,
        "toolchain": evaluation.toolchain,
        "device": evaluation.device,
        "validity": evaluation.validity,
        "timing": evaluation.timing,
        "reached": evaluation.reached,
        "message": evaluation.message,
        "checks": len(evaluation.checks),
        "checks_passed": sum(check.ok for check in evaluation.checks),
        "flags": [asdict(flag) for flag in evaluation.flags],
        "signals": list(evaluation.verdict.signal_ids),
        "isolation": evaluation.isolation.level if evaluation.isolation else None,
    }


# -- report.md


def rendered(content: Mapping[str, Any]) -> str:
    """The content of report.json as Markdown."""
    parts = [
        f"# {_cell(content['problem']['name'])} on {_cell(content['hardware'])}",
        _headline(content),
        _result(content["result"]),
        "## Run",
        _run(content),
        "## Cases",
        _cases(content["cases"]),
        "## Candidates",
        _verdicts(content["verdicts"]),
        _candidates(content["candidates"]),
        *_pictures(content["plots"]),
        "## From the reference to the winner",
        _path(content["path"]),
        "## Models",
        _models(content["models"]),
        "## Not measured",
        "\n".join(f"* {_cell(line)}" for line in content["not_measured"])
        or "Nothing was left out.",
        f"Every candidate with its source is in `{TRAJECTORY}`.",
    ]
    return "\n\n".join(parts) + "\n"


def figure(interval: Mapping[str, Any] | None, without: str = "none") -> str:
    """A speed-up with its 95 % interval and number of pairs of blocks."""
    if interval is None:
        return without
    low, high = interval["low"], interval["high"]
    return f"{interval['value']:.3f}x [{low:.3f}, {high:.3f}] n={interval['n']}"


def _headline(content: Mapping[str, Any]) -> str:
    result = content["result"]
    if result["gain"] is None:
        what = "No gain" if result["measured"] else "Not confirmed"
        if result["best_so_far"] is not None:
            source = "its source is in the package, but no call uses it"
            return f"**{what}.** {_cell(result['reason'])}; {source}."
        return f"**No gain.** {_cell(result['reason'])}. The written module is the reference."
    return (
        f"**{figure(result['gain'])}** over {result['over']} by node {result['winner']}, measured"
        " again in fresh processes on values that the search never saw."
    )


def _result(result: Mapping[str, Any]) -> str:
    rows = [
        (f"gain over {result['over']}", figure(result["gain"])),
        ("inherited from earlier runs", figure(result["inherited"])),
        ("new in this run", figure(result["new"])),
    ]
    note = (
        "Speed-ups are times of the reference over those of the kernel, with 95 % intervals over"
        " n pairs of blocks."
    )
    if result["clock"] == "simulator":
        note = (
            f"Ratios of simulated times (`simulator`): those of {result['over']} over those of the"
            " kernel, one run each. No wall time is in them."
        )
    elif result["clock"] in COST_KINDS:
        note = (
            f"Ratios of {result['clock']} that an emulator executed: those of {result['over']} over"
            " those of the kernel, one run each. They are a cost and no time."
        )
    if result["clock"] == "program":
        note = (
            f"Ratios of times that the chip's own program reports: those of {result['over']} over"
            " those of the kernel, with 95 % intervals over repeated runs. The two were run one"
            " after the other."
        )
    return f"{_table(('result', 'speed-up'), rows)}\n\n{note}"


def _run(content: Mapping[str, Any]) -> str:
    began = datetime.fromtimestamp(content["started_at"], UTC).isoformat(timespec="seconds")
    problem = content["problem"]
    goal = {name: value for name, value in content["goal"].items() if value is not None}
    rows = [
        ("run", content["run"]),
        ("problem", f"{problem['name']} (op {problem['op']}, {problem['precision']} precision)"),
        ("problem sha256", problem["sha256"]),
        ("hardware, device", f"{content['hardware']}, {content['device']}"),
        *((f"toolchain {name}", version) for name, version in content["environment"].items()),
        ("goal", ", ".join(f"{name} = {value}" for name, value in goal.items())),
        *([("baseline", content["baseline"])] if content["baseline"] else []),
        ("began", began),
        ("took", f"{content['seconds']:.0f} s"),
        ("ended", f"{content['state']}: {content['ended'] or 'no reason was stored'}"),
    ]
    return _table(("what", "value"), rows)


def _cases(cases: Sequence[Mapping[str, Any]]) -> str:
    if not cases:
        return "No winner was measured."
    rows = [
        (
            case["case"],
            "held out" if case["held_out"] else "searched",
            figure(case["speedup"]),
            "yes" if case["wins"] else "no",
        )
        for case in cases
    ]
    note = (
        "The module's kernel takes calls that look like a case that is certainly faster, and its"
        " dispatch.json says of each case why or why not."
    )
    return f"{_table(('case', 'kind', 'speed-up', 'certainly faster'), rows)}\n\n{note}"


def _verdicts(verdicts: Mapping[str, Mapping[str, int]]) -> str:
    rows = [("outcome", name, str(n)) for name, n in verdicts["outcomes"].items()]
    rows += [("leading signal", name, str(n)) for name, n in verdicts["signals"].items()]
    return _table(("of", "verdict", "candidates"), rows) if rows else "There were none."


def _candidates(groups: Sequence[Mapping[str, Any]]) -> str:
    if not groups:
        return "No candidate was proposed."
    rows = [
        (
            group["origin"],
            group["synthesizer"],
            group["recipe"] or "",
            str(group["n"]),
            str(group["correct"]),
            _counted(group["failures"]),
            _best(group),
        )
        for group in groups
    ]
    head = ("origin", "synthesizer", "recipe", "n", "correct", "other outcomes", "best")
    return (
        f"{_table(head, rows)}\n\n`best` is the search's own figure: the best of many is partly the"
        " luckiest, so the winner was measured again."
    )


def _best(group: Mapping[str, Any]) -> str:
    """The best figure of a group, else its rough figure; the baseline is 1 by definition, so it has
    none."""
    if group["best_is_baseline"]:
        return "the baseline"
    return figure(group["best"], group["rough"] or "none")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items()) or "none"


def _path(steps: Sequence[Mapping[str, Any]]) -> str:
    if not steps:
        return "There is no winner."
    return "\n\n".join(map(_step, steps))


def _step(step: Mapping[str, Any]) -> str:
    shown = step["shown"]
    changes = ", ".join(f"{n}: {_was(a)} -> {_was(b)}" for n, (a, b) in step["changes"].items())
    before = figure(step["speedup_before"], "the reference" if step["from"] == 0 else "none")
    recipe = f", recipe {step['recipe']}" if step["recipe"] else ""
    inherited = " (inherited)" if step["inherited"] else ""
    rows = [
        ("plan", step["plan"] or "none was given"),
        ("by", f"{step['synthesizer']} ({step['origin']}{recipe})"),
        ("values changed", changes or "none"),
        ("speed-up in the search", f"{before} -> {figure(step['speedup_after'])}"),
        ("signals", f"{_listed(step['signals_before'])} -> {_listed(step['signals_after'])}"),
        ("excerpts shown", _listed(shown["excerpts"])),
        ("moves shown", _listed(shown["moves"])),
        ("skills shown", _listed(shown["skills"])),
        ("claimed", _listed(step["claimed"])),
        ("attributed", _listed(step["attributed"])),
    ]
    title = f"### Node {step['from']} to node {step['to']}{inherited}"
    return f"{title}\n\n{_table(('what', 'value'), rows)}"


def _was(value: Any) -> str:
    return "not set" if value is None else str(value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _models(models: Sequence[Mapping[str, Any]]) -> str:
    if not models:
        return "No language model was called."
    rows = []
    for row in models:
        unknown = f" and {row['usd_unknown']} of unknown price" if row["usd_unknown"] else ""
        rows.append(
            (
                row["model"],
                str(row["n"]),
                str(row["correct"]),
                f"{row['tokens_in']:,} in, {row['tokens_out']:,} out",
                f"{row['usd']:.4f}{unknown}",
                _best(row),
            )
        )
    return _table(("model", "n", "correct", "tokens", "USD", "best"), rows)


def _pictures(plots: Mapping[str, str]) -> list[str]:
    return [f"![{CAPTIONS[name]}]({path})" for name, path in plots.items()]


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """The text on one line, with characters of Markdown escaped."""
    plain = " ".join(str(text).split())
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
