"""The report of a run: report.json as data, report.md to read, plots and the trajectory beside.

The trajectory is JSON lines, one per candidate: state (what was shown), action (what was proposed)
and reward with where it comes from. Knows nothing of who learns from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.confirm import RunOutcome
from optimizer.search.output.account import account
from optimizer.search.output.plots import write_plots
from optimizer.search.records import Node
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree

FORMAT = 1
TRAJECTORY = "trajectory.jsonl"
Rows = Sequence[Sequence[str]]


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
    """The reward: `value` is the lower bound of the speed-up, 0 for a failed candidate, and None
    where nothing is known."""
    evaluation = node.evaluation
    known = node.state == "evaluated" and evaluation is not None
    failed = known and evaluation is not None and not evaluation.correct
    value = node.speedup.low if known and node.correct and node.speedup else None
    return {
        "state": node.state,
        "same_as": node.same_as,
        "value": 0.0 if failed else value,
        "speedup": _interval(node),
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


def _interval(node: Node) -> Mapping[str, Any] | None:
    return asdict(node.speedup) if node.speedup is not None else None


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


def rendered(content: Mapping[str, Any]) -> str:
    """The content of report.json as Markdown."""
    parts = [
        f"# {_cell(content['problem']['name'])} on {_cell(content['hardware'])}",
        _lead(content),
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
    """A speed-up with its 95 % interval and the number of pairs of blocks behind it."""
    if interval is None:
        return without
    low, high = interval["low"], interval["high"]
    return f"{interval['value']:.3f}x [{low:.3f}, {high:.3f}] n={interval['n']}"


def _lead(content: Mapping[str, Any]) -> str:
    result = content["result"]
    if result["gain"] is None:
        what = "No gain" if result["measured"] else "Not confirmed"
        if result["best_so_far"] is not None:
            source = "its source lies in the package and no call takes it"
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
    """The best figure of a group, or what is roughly known of it; the baseline itself is 1 by
    definition, which says nothing.
    """
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
        return "No language model was asked."
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


CAPTIONS = {
    "progress": "Speed-up of every candidate with its 95 % interval, and the best so far",
    "tree": "The search tree; the thick path leads to the winner",
    "roofline": "Shares of the measured ceilings, of the reference and the winner",
}


def _pictures(plots: Mapping[str, str]) -> list[str]:
    return [f"![{CAPTIONS[name]}]({path})" for name, path in plots.items()]


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """On one line, with nothing that Markdown would take for its own."""
    plain = " ".join(str(text).split())
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
