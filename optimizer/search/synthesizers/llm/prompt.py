"""The prompt for a context, or a briefing for an external proposer, within a token budget.

Over budget, excerpts are left out first, then earlier kernels, their sources, and parts of the log.
Facts, moves and the source to change always stay.

Sections of a prompt about kernels of the run: the one to start from, its verdict, earlier ones.

Every text that is not from a template goes through the fence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kb.answers import HotLines, SignalFinding
from kb.prompt_tokens import count_tokens
from optimizer.evaluation.records import CaseTiming, Evaluation, Interval, two_digits
from optimizer.search.goal import floor_of
from optimizer.search.knowledge import ShownExcerpt
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, time_text
from optimizer.search.synthesizers.base import ProposalContext
from optimizer.search.synthesizers.llm import sections
from optimizer.search.synthesizers.llm.sections import ids, known, number, pairs
from optimizer.search.synthesizers.llm.templates import (
    Fence,
    default_main,
    own_entry,
    rendered,
    wanted,
)
from optimizer.search.tree import rough_gain
from retrieval.diagnose.log_digest import LogMessage, digest, log_messages
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals

LOG_CHARS = 8_000
LEAST_LOG_CHARS = 500
TOOLS_NOTE = " You may call the tools first; the answer itself is the object and the files."
FIRST = "Answer with the JSON object and the files: one complete kernel in place of the reference."
# If correct ones were written already, which may be changed instead.
ANOTHER = f"{FIRST[:-1]}, faster than what was written so far."
STARTED_FROM = "The kernel to start from"
MEASURED = "What was measured about it"
MEASURED_OF_REFERENCE = "What was measured"
NEXT = (
    "Answer with the JSON object and the files: one complete candidate, the kernel above changed."
)


@dataclass(frozen=True)
class ModelPrompt:
    """A rendered prompt. `shown` are the ids that a model may claim to have used, `alternatives`
    numbers the correct kernels that it may start from instead of the parent.

    `tokens` are those of one tokenizer (kb/prompt_tokens.py); newer models count fewer. `left_out`
    lists in words the parts that did not fit.
    """

    system: str
    user: str
    shown: frozenset[str]
    tokens: int
    left_out: str
    alternatives: tuple[int, ...] = ()


@dataclass(frozen=True)
class Briefing:
    """A context in words for an external proposer.

    `task` is equal in a run: problem, policy, judging, hardware, interface, and knowledge about the
    chip. `step` is the kernel to start from with its verdict, earlier kernels, and knowledge about
    them. `shown` are the ids of the knowledge.
    """

    task: str
    step: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class _Variable:
    """The parts of a prompt that may be left out. `base` is the correct kernel to continue from if
    the parent is the reference: its source stays, like that of a parent."""

    excerpts: tuple[ShownExcerpt, ...]
    seen: tuple[Node, ...]
    sources: tuple[Node, ...]
    log_chars: int
    base: Node | None = None

    def less(self) -> _Variable | None:
        if self.excerpts:
            return replace(self, excerpts=self.excerpts[:-1])
        if self.seen:
            return replace(self, seen=self.seen[:-1])
        if self.sources[-1:] not in ((), (self.base,)):
            return replace(self, sources=self.sources[:-1])
        if self.log_chars > LEAST_LOG_CHARS:
            return replace(self, log_chars=max(LEAST_LOG_CHARS, self.log_chars // 2))
        return None


def compose(context: ProposalContext, fence: Fence, *, budget: int, tools: bool) -> ModelPrompt:
    """The prompt for a context.

    `budget` bounds the tokens of moves, skills, earlier kernels and log together; moves and skills
    stay even beyond it. The composed knowledge has its own bound; a budget of 0 leaves it out.
    `tools` mentions that tools may be called.
    """
    context, whole, fitting = _fitted(context, fence, budget)
    system = _system(context, fence)
    user = _user(context, fitting, fence, tools)
    shown = ids(context, fitting.excerpts)
    tokens = count_tokens(system + user)
    return ModelPrompt(
        system, user, shown, tokens, _left_out(whole, fitting), _further_kernels(fitting)
    )


def brief(context: ProposalContext, fence: Fence, *, budget: int) -> Briefing:
    """The content of a prompt without the form of the answer. `budget` is as in `compose`."""
    context, _, fitting = _fitted(context, fence, budget)
    values = _values(context, fitting, fence)
    note = rendered("quoted.md", {"boundary": fence.boundary, "end": fence.end})
    task = [note, *(f"# {title}\n{values[name]}" for title, name in _TASK), values["target"]]
    step = [values[name] for name in ("parent", "verdict", "memory", "knowledge")]
    return Briefing(_joined(task), _joined(step), tuple(sorted(ids(context, fitting.excerpts))))


_TASK = (
    ("Problem", "problem"),
    ("What is allowed", "policy"),
    ("How it is judged", "judging"),
    ("Hardware", "hardware"),
    ("Interface", "interface"),
)


def _titled(title: str, text: str) -> str:
    """A section, "" without a text."""
    return f"# {title}\n{text}" if text else ""


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _fitted(
    context: ProposalContext, fence: Fence, budget: int
) -> tuple[ProposalContext, _Variable, _Variable]:
    """The context within the budget, all its variable parts, and those that fit."""
    packed = context.knowledge.target or context.knowledge.situation
    sources = worth_showing(context)
    first = context.parent.proposal is None and sources and sources[0].correct
    whole = _Variable(
        context.knowledge.excerpts if context.with_knowledge and not packed else (),
        tuple(node for node in context.seen if node.proposal is not None),
        sources,
        LOG_CHARS,
        base=sources[0] if first else None,
    )
    if budget <= 0:  # the model's window is smaller than the composed knowledge
        context = replace(context, knowledge=replace(context.knowledge, target="", situation=""))
    fitting: _Variable = whole
    while count_tokens(_spent(context, fitting, fence)) > budget:
        fewer = fitting.less()
        if fewer is None:
            break
        fitting = fewer
    return context, whole, fitting


def _spent(context: ProposalContext, fitting: _Variable, fence: Fence) -> str:
    log = context.parent.evaluation.log if context.parent.evaluation is not None else ""
    # The composed knowledge has its own budget, and the kernel to continue from has none.
    unpacked = replace(context, knowledge=replace(context.knowledge, situation=""))
    fitting = replace(
        fitting, sources=tuple(node for node in fitting.sources if node is not fitting.base)
    )
    return "".join(
        [
            known(unpacked, fitting.excerpts, fence),
            _memory(context, fitting, fence),
            log[: fitting.log_chars] if not context.parent.correct else "",
        ]
    )


def _system(context: ProposalContext, fence: Fence) -> str:
    language = wanted(context)
    main = default_main(language, context)
    values = {"language": language, "main": main, "entry": own_entry(language, main, context)}
    return rendered("system.md", {**values, "boundary": fence.boundary, "end": fence.end})


def _user(context: ProposalContext, fitting: _Variable, fence: Fence, tools: bool) -> str:
    task = NEXT
    if context.parent.proposal is None:
        task = ANOTHER if _further_kernels(fitting) else FIRST
    values = {"task": task, "tools": TOOLS_NOTE if tools else ""}
    return rendered("user.md", {**_values(context, fitting, fence), **values})


def _values(context: ProposalContext, fitting: _Variable, fence: Fence) -> dict[str, str]:
    """The parts of a prompt by the names of their placeholders."""
    return {
        "problem": sections.problem(context, fence),
        "policy": sections.policy(context.problem, fence, wanted(context)),
        "judging": sections.judging(context),
        "hardware": sections.hardware(context, fence),
        "interface": sections.interface(context),
        "parent": _titled(STARTED_FROM, parent(context, fence, fitting.sources)),
        "verdict": _titled(
            MEASURED if context.parent.proposal is not None else MEASURED_OF_REFERENCE,
            _measured(context, fitting, fence),
        ),
        "memory": _memory(context, fitting, fence),
        "target": sections.target(context, fence),
        "knowledge": known(context, fitting.excerpts, fence),
    }


def _measured(context: ProposalContext, fitting: _Variable, fence: Fence) -> str:
    """Verdict of the parent; with those of correct kernels if the parent is the reference."""
    chars, baseline = fitting.log_chars, context.baseline
    own = verdict(context.parent, fence, chars, baseline)
    floor = floor_of(context.tried)
    if floor is not None:
        own = f"{own}\n{floor.sentence()}".strip()
    right = [node for node in fitting.sources if node.correct]
    if context.parent.proposal is not None or not right:
        return own
    others = (f"Node {n.number}:\n{verdict(n, fence, chars, baseline)}" for n in right)
    return "\n".join([*([f"The reference:\n{own}"] if own else []), *others])


def _memory(context: ProposalContext, fitting: _Variable, fence: Fence) -> str:
    # Earlier kernels that the budget leaves out have a line among the lessons.
    remembered = replace(context, seen=fitting.seen)
    parts = [
        under_way(context, fence),
        lessons(remembered, fence),
        seen(fitting.seen, fence, context.baseline),
        best(remembered, fence),
        sources(fitting.sources, fence, min(fitting.log_chars, MAX_MESSAGE), context.baseline),
    ]
    text = "\n".join(part for part in parts if part)
    return f"# Earlier kernels (one of them again, unchanged, is refused)\n{text}" if text else ""


def _further_kernels(fitting: _Variable) -> tuple[int, ...]:
    """The numbers of correct kernels whose source is shown, except the parent's."""
    return tuple(node.number for node in fitting.sources if node.correct)


def _left_out(whole: _Variable, fitting: _Variable) -> str:
    excerpts = len(whole.excerpts) - len(fitting.excerpts)
    seen = len(whole.seen) - len(fitting.seen)
    sources = len(whole.sources) - len(fitting.sources)
    log = (
        ""
        if fitting.log_chars == whole.log_chars
        else f", log cut to {fitting.log_chars} characters"
    )
    more = f", {sources} of their sources" if sources else ""
    return f"{excerpts} excerpts, {seen} earlier kernels{more}{log}"


MAX_METRICS = 60
MAX_EVIDENCE = 600  # characters of one signal's
MAX_PLAN = 1_200
MAX_MESSAGE = 2_000
MAX_CHECKS = 4
MAX_HOT_LINES = 4  # groups of lines
MAX_LESSONS = 40
NEAR_A_COPY = 80.0  # per cent of a copy's rate; above, a note states that the copy is no ceiling
MAX_LESSON = 240  # characters
MAX_PLAN_LESSON = 720  # characters of the plan of a correct kernel
UNDER_WAY = (
    "Proposed in this round already, and not measured yet. The fastest right one of the round"
    " counts: take a way that may beat these, or one that holds where these may fail:\n"
)
_COUNT = re.compile(r"\s*\d+ (?:error|warning)", re.IGNORECASE)  # a total at the end of a log
AGAIN = (
    "The reference above: what was written in its place stands under Earlier kernels, and none of"
    " it is right yet."
)
ANOTHER_REFERENCE = (
    "The reference above: what was written in its place stands under Earlier kernels."
)
FROM_EARLIER = (
    "Node {number}, a right kernel in place of the reference, whose source stands under Earlier"
    " kernels: go on from it, or take another way from the reference above."
)
REPEAT = "timing must be repeated: "
# Other work adds to times, unequally: 620 times the reference's speed was 46 times on an idle
# machine, for a reference of a thousand small operators a call.
ROUGH = (
    "roughly, the fastest of calls that other work disturbed, an order of magnitude at best (a"
    " reference of many small operators suffers most) and not to be compared with times of other"
    " candidates"
)
QUIET = ", processors quiet"
NO_FIGURE = "no figure yet"
NO_SIGNAL = "no signal: nothing that was measured names what holds it up"
MENDABLE = ("not_compiled", "incorrect", "unsupported", "crashed", "timed_out", "rejected")
BECAME: Mapping[str, str] = {
    "correct": "correct",
    "incorrect": "wrong results",
    "unsupported": "it declined an input",
    "crashed": "it crashed",
    "timed_out": "it ran past a deadline",
    "not_compiled": "it did not compile",
    "rejected": "refused, because it breaks a rule",
    "not_run": "it was not run",
}


def parent(context: ProposalContext, fence: Fence, shown: Sequence[Node]) -> str:
    """The kernel to start from, or a sentence if that is the reference; "" before the first kernel.
    `shown` are the earlier kernels whose source is in the prompt."""
    if context.parent.proposal is not None:
        return source(context.parent, fence)
    if right := [node.number for node in shown if node.correct]:
        return FROM_EARLIER.format(number=right[0])
    written = any(node.proposal is not None and node.evaluation for node in context.tried)
    if not written or not context.with_memory:
        return ""
    return ANOTHER_REFERENCE if any(node.correct for node in context.tried) else AGAIN


def source(node: Node, fence: Fence) -> str:
    """Language, entry and files of a kernel. The node must have a proposal."""
    assert node.proposal is not None
    bundle = node.proposal.bundle
    parts = [f"Node {node.number}: {bundle.language}, entry and files:"]
    parts.append(fence.around("entry", bundle.entry))
    for name in sorted(bundle.files, key=lambda name: (name != bundle.main, name)):
        parts.append(fence.around("source", f"file: {name}\n{bundle.files[name]}"))
    if bundle.parameters:
        parts.append(fence.around("parameters", pairs(bundle.parameters)))
    return "\n".join(parts)


def verdict(node: Node, fence: Fence, log_chars: int, baseline: Node | None = None) -> str:
    """Result of the evaluation: outcome, times, signals, metrics and log. A log longer than
    `log_chars` is reduced to its distinct messages with their counts. Speed-ups are relative to
    `baseline`, None for the reference. "" for a reference that was not run."""
    evaluation = node.evaluation
    if evaluation is None:
        return f"Nothing: {node.problem or node.state}." if node.proposal is not None else ""
    lines = [_became(evaluation), *_speed(node, baseline), *_checks(evaluation)]
    lines += [_signal(signal, n) for n, signal in enumerate(evaluation.verdict.signals)]
    if evaluation.correct and not evaluation.verdict.signals:
        lines.append(NO_SIGNAL)
    blocks = [fence.around("verdict", "\n".join(lines))]
    if evaluation.verdict.lines:
        blocks.append(fence.around("lines", _hot_lines(evaluation.verdict.lines)))
    if evaluation.metrics and evaluation.validity != "incorrect":  # irrelevant to wrong results
        blocks.append(fence.around("metrics", _metrics(evaluation.metrics)))
    if evaluation.log and not evaluation.correct:
        blocks.append(fence.around("log", digest(evaluation.log, log_chars)))
    return "\n".join(blocks)


def _hot_lines(groups: Sequence[HotLines]) -> str:
    """The lines that take the time, with their source and what they wait for."""
    lines = ["the lines that take the time, from samples of a profiler:"]
    for group in groups[:MAX_HOT_LINES]:
        lines += [group.finding, *(f"  {text}" for text in group.source)]
        if group.awaited:
            lines.append(f"  waits for {group.awaited}")
        elif group.instructions and not group.source:
            lines.append(f"  at {group.instructions[0]['text']}")
    return "\n".join(lines)


def _became(evaluation: Evaluation) -> str:
    outcome = BECAME.get(evaluation.validity, evaluation.validity)
    return f"{outcome}: {_cut(evaluation.message, MAX_MESSAGE)}" if evaluation.message else outcome


def _speed(node: Node, baseline: Node | None) -> list[str]:
    """Times of each case, or the reason why a correct kernel has none."""
    evaluation = node.evaluation
    if evaluation is None or not evaluation.correct:
        return []
    if evaluation.timing == "repeat":
        return [f"not measured: {_rough(evaluation, node.number == REFERENCE)}"]
    lines = []
    if node.number not in (REFERENCE, _number(baseline)) and evaluation.speedup is not None:
        lines.append(f"speed-up over {_name(baseline)}: {_interval(evaluation.speedup)}")
    for timing in evaluation.timings:
        if timing.simulated_cost and timing.state == "simulator":
            lines.append(f"case {timing.case}: {timing.simulated_cost} in the simulator")
        elif timing.candidate_us is not None:
            beside = timing.baseline_us if node.number != REFERENCE else None
            other = _name(baseline).removeprefix("the ")
            compared = "" if beside is None else f" ({other} {_us(beside)} us in turns with it)"
            took = f"{_us(timing.candidate_us)} us a call{compared}"
            quiet = QUIET if timing.state == "measured" else ""
            lines.append(f"case {timing.case}: {took}{quiet}")
    return [*lines, *_roof(evaluation.verdict.metrics)]


def _roof(metrics: Mapping[str, float | str]) -> list[str]:
    """The share of a kernel's time that the measured rates of the device account for, if known."""
    shares = {
        "copy_bandwidth_pct": "moving inputs, weights and outputs once",
        "matmul_peak_pct": "its counted products",
    }
    known = [(what, metrics.get(name)) for name, what in shares.items()]
    parts = [
        f"{what} {two_digits(share)} %"
        for what, share in known
        if isinstance(share, float) and share
    ]
    if not parts:
        return []
    copied = metrics.get("copy_bandwidth_pct")
    if isinstance(copied, int | float) and copied >= NEAR_A_COPY:
        parts[0] += (
            " (the rate of a copy, which writes as much as it reads: reading alone is faster)"
        )
    rest = "" if metrics.get("matmul_peak_pct") else "; other arithmetic is not counted"
    return [f"of its time, at the measured rates of this device: {', '.join(parts)}{rest}"]


def _rough(evaluation: Evaluation, alone: bool = False) -> str:
    """The reason for a missing figure, and times of disturbed calls. `alone` leaves out those of
    the reference."""
    reasons = [t.reason.removeprefix(REPEAT) for t in evaluation.timings if t.reason]
    # The rest after a semicolon is advice to the user of the machine.
    why = reasons[0].partition(";")[0] if reasons else "the machine was too busy"
    why = _cut(why, MAX_EVIDENCE)
    rows = [_rough_case(timing, alone) for timing in evaluation.timings]
    times = "; ".join(row for row in rows if row)
    known = f"{ROUGH}: {times}" if times else "no time of its calls is known"
    return f"{why}. {known[:1].upper()}{known[1:]}"


def _rough_case(timing: CaseTiming, alone: bool) -> str:
    """The known times of one case, measured or rough."""
    if timing.candidate_us is not None:
        return f"case {timing.case} {_us(timing.candidate_us)} us a call, measured"
    if timing.rough_us is None:
        return ""
    text = f"case {timing.case} about {two_digits(timing.rough_us)} us a call"
    if alone:
        return f"{text} by itself, under another load than the candidates"
    if timing.rough_baseline_us is None:
        return text
    reference = two_digits(timing.rough_baseline_us)
    return f"{text}, the reference about {reference} us in turns with it, under the same load"


def _us(microseconds: float) -> str:
    return f"{microseconds:.0f}" if microseconds >= 1000 else f"{microseconds:.4g}"


def _number(node: Node | None) -> int:
    """The node's number, that of the reference for None."""
    return REFERENCE if node is None else node.number


def _name(baseline: Node | None) -> str:
    """The baseline of a speed-up in words."""
    if baseline is None:
        return "the reference"
    if baseline.number == REFERENCE:
        return "the manual's sample"
    return f"node {baseline.number}, the first right kernel"


def _interval(speedup: Interval) -> str:
    if speedup.low == speedup.high:  # a simulator repeats itself
        return f"{speedup.value:.3g}x"
    low, high = f"{speedup.low:.3g}", f"{speedup.high:.3g}"
    return f"{speedup.value:.3g}x (95 % interval {low} to {high})"


def _checks(evaluation: Evaluation) -> list[str]:
    """Failed cases, except the one in the message, and passed ones."""
    if evaluation.correct:
        return []
    passed = dict.fromkeys(check.case for check in evaluation.checks if check.ok)
    failed = {check.case: check.message for check in evaluation.checks if not check.ok}
    new = [
        f"case {case}: {_cut(message, MAX_EVIDENCE)}"
        for case, message in failed.items()
        if message not in evaluation.message
    ]
    right = [case for case in passed if case not in failed]
    return [*new[:MAX_CHECKS], *([f"right in case {', '.join(right)}"] if right else [])]


def _signal(signal: SignalFinding, place: int) -> str:
    """A signal's id and meaning, then its evidence in words."""
    name = str(signal.id)
    known = load_signals()
    meaning = f": {known.get(name).description}" if name in known else ""
    confidence: object = signal.confidence
    sure = f" (confidence {confidence:.2g})" if isinstance(confidence, int | float) else ""
    reason = _evidence(signal.evidence)
    because = f"\n  because {_cut(reason, MAX_EVIDENCE)}" if reason else ""
    return f"{'leading signal' if not place else 'signal'} {name}{sure}{meaning}{because}"


def _evidence(items: Iterable[Any]) -> str:
    """Evidence in words, each item once: a metric with the rules that it met, a log line, or
    text."""
    rules: dict[str, list[str]] = {}
    for item in items:
        if isinstance(item, Mapping) and "name" in item and "value" in item:
            name, test = str(item["name"]), str(item.get("test") or "")
            met = rules.setdefault(_named_value(name, item["value"], name), [])
            met += [test] if test and test not in met else []
        elif isinstance(item, Mapping) and "line" in item:
            title = item.get("title") or item.get("signature") or "log"
            rules.setdefault(f"{title}: {item['line']}", [])
        else:
            text = item if isinstance(item, str) else json.dumps(item, default=str)
            rules.setdefault(text, [])
    return "; ".join(
        f"{text} (rule: {' and '.join(met)})" if met else text for text, met in rules.items()
    )


def _metrics(metrics: Mapping[str, float | str]) -> str:
    """Metrics by the names of their collector."""
    rows = sorted(metrics.items())[:MAX_METRICS]
    known = {raw: name for name, raw in load_metrics().normalise(dict(rows)).sources.items()}
    return "\n".join(_named_value(name, value, known.get(name, name)) for name, value in rows)


def _named_value(name: str, value: object, canonical: str) -> str:
    """A metric with its meaning from the registry."""
    registry = load_metrics()
    known = canonical in registry
    meaning = f" [{registry.get(canonical).description.rstrip('.')}]" if known else ""
    return f"{name} = {number(value)}{meaning}"


def seen(nodes: Iterable[Node], fence: Fence, baseline: Node | None = None) -> str:
    """Earlier kernels: plan and result."""
    outcomes = [
        fence.around("earlier", _outcome(node, baseline))
        for node in nodes
        if node.proposal is not None
    ]
    return "\n".join(outcomes)


def under_way(context: ProposalContext, fence: Fence) -> str:
    """Plans of candidates in flight: without them, several drafts of one round are equal."""
    plans = [
        f"node {node.number}: {_cut(' '.join(node.proposal.plan.split()), MAX_PLAN)}"
        for node in context.tried
        if node.state == IN_FLIGHT and node.proposal is not None
    ]
    return UNDER_WAY + fence.around("under-way", "\n".join(plans)) if plans else ""


def lessons(context: ProposalContext, fence: Fence) -> str:
    """Lessons of the run: each distinct message of compilers and devices with its kernels, and the
    outcomes of kernels. Leaves out outcomes of `seen` and logs of kernels whose source is shown.
    Empty for a run without memory."""
    if not context.with_memory:
        return ""
    shown = {node.number for node in context.seen} | {context.parent.number}
    tried = [n for n in context.tried if n.state != "duplicate" and n.proposal and n.evaluation]
    logged = [context.parent, *worth_showing(context)]
    read = {message.kind for node in logged for message in _refusals(node)}
    refused = _refused(tried, read)
    brought = (_outcome_line(n, context.baseline) for n in tried if n.number not in shown)
    lines = [*refused[:MAX_LESSONS], *brought]
    lines = [line for line in lines if line][-MAX_LESSONS:]
    return "Lessons of this run:\n" + fence.around("lessons", "\n".join(lines)) if lines else ""


def _refusals(node: Node) -> list[LogMessage]:
    """The messages with the reason of a failure: errors, or all messages of a compiler that only
    prints codes. The other messages of a compiler that did not fail give no reason."""
    evaluation = node.evaluation
    if evaluation is None or evaluation.correct:
        return []
    messages = [m for m in log_messages(evaluation.log) if not _COUNT.match(m.text)]
    failures = [message for message in messages if message.failure]
    return messages if not failures and evaluation.validity == "not_compiled" else failures


def _refused(tried: Sequence[Node], read: set[str]) -> list[str]:
    """A line for each kind of message that is not in `read`, newest first."""
    texts: dict[str, str] = {}
    nodes: dict[str, list[int]] = {}
    for node in reversed(tried):
        for message in _refusals(node):
            if message.kind not in read:
                texts.setdefault(message.kind, message.text.strip())
                nodes.setdefault(message.kind, []).insert(0, node.number)
    return [
        f"refused (node {', '.join(map(str, nodes[kind]))}): {_cut(text, MAX_LESSON)}"
        for kind, text in texts.items()
    ]


def _registers(metrics: Mapping[str, float | str]) -> str:
    """Registers of a thread and spills, if a compiler counted them."""
    count = metrics.get("n_regs")
    if not isinstance(count, int | float):
        return ""
    return f", {count:g} registers a thread{', with spills' if metrics.get('n_spills') else ''}"


def _outcome_line(node: Node, baseline: Node | None) -> str:
    """The outcome of a kernel; "" if messages of its log already tell why it failed."""
    evaluation = node.evaluation
    if evaluation is None or node.proposal is None:
        return ""
    if evaluation.correct:
        plan = _cut(" ".join(node.proposal.plan.split()), MAX_PLAN_LESSON)
        result = _result(node, baseline)
        if evaluation.timing == "repeat":
            rows = [_rough_case(timing, alone=False) for timing in evaluation.timings]
            times = "; ".join(row for row in rows if row) or "no time is known"
            result = f"correct, {NO_FIGURE}, roughly: {times}"
        changed = f" (from node {node.parent})" if node.parent else ""
        registers = _registers(evaluation.verdict.metrics)
        return f"node {node.number}{changed}: {result}{registers}: {plan}"
    if _refusals(node):
        return ""
    became = BECAME.get(evaluation.validity, evaluation.validity)
    return f"node {node.number}: {became}: {_cut(' '.join(evaluation.message.split()), MAX_LESSON)}"


def best(context: ProposalContext, fence: Fence) -> str:
    """The best node so far, unless the prompt contains it already."""
    node = context.best
    shown = {REFERENCE, context.parent.number, *(node.number for node in context.seen)}
    if node is None or node.number in shown:
        return ""
    return "The best so far:\n" + fence.around("best", _outcome(node, context.baseline))


def worth_showing(context: ProposalContext) -> tuple[Node, ...]:
    """The earlier kernels whose source helps: the best correct one, unless it is the parent, and
    the last that failed and may be repaired."""
    written = [node for node in context.seen if node.proposal is not None and node.evaluation]
    written = [node for node in written if node.parent == context.parent.number]
    failed = [node for node in written if _mendable(node)]
    right = [node for node in written if node.correct]
    chosen = []
    best = context.best
    if best is not None and best.proposal is not None and best.number != context.parent.number:
        chosen.append(best)
    elif right and context.parent.number == REFERENCE:
        chosen.append(max(right, key=lambda node: (node.merit, rough_gain(node), node.number)))
    elif unmeasured := _promising(context):
        chosen.append(unmeasured)
    if failed:
        last = max(failed, key=lambda node: node.number)
        # A failure before a correct kernel is obsolete.
        if all(last.number > node.number for node in right):
            chosen.append(last)
    return tuple(chosen)


def _promising(context: ProposalContext) -> Node | None:
    """The correct kernel without a figure that seems fastest, if it seems faster than the
    parent."""
    if not context.with_memory:
        return None
    parent = context.parent
    written = [n for n in context.tried if n.correct and n.proposal and n.number != parent.number]
    untimed = [n for n in written if n.speedup is None]
    seems = max(untimed, key=lambda n: (rough_gain(n), n.number), default=None)
    before = parent.speedup.value if parent.speedup is not None else rough_gain(parent)
    return seems if seems is not None and rough_gain(seems) > before else None


def _mendable(node: Node) -> bool:
    return node.evaluation is not None and node.evaluation.validity in MENDABLE


def sources(
    nodes: Sequence[Node], fence: Fence, log_chars: int, baseline: Node | None = None
) -> str:
    """The whole source of these kernels, with the verdict of those that failed."""
    parts = []
    for node in nodes:
        if node.correct:
            parts.append(f"{_headline(node)} Go on from it where it helps.\n{source(node, fence)}")
        else:
            parts.append(
                "The last that failed, whole. Mend it where its idea is sound.\n"
                f"{source(node, fence)}\n{verdict(node, fence, log_chars, baseline)}"
            )
    return "\n".join(parts)


def _headline(node: Node) -> str:
    """Headline of a correct kernel; one without a figure is not called the best."""
    if node.speedup is not None:
        return "The best so far, whole."
    return f"Node {node.number}, right, with {NO_FIGURE}, whole."


def _came_from(node: Node) -> str:
    """The kernels that it was changed from, as they were shown to its author."""
    alternatives = node.proposal.alternatives if node.proposal is not None else ()
    others = " or ".join(f"node {number}" for number in alternatives)
    if node.parent == REFERENCE:
        return f"written anew{f', with {others} to go on from' if others else ''}"
    return f"changed from node {node.parent}{f', with {others} beside it' if others else ''}"


def _outcome(node: Node, baseline: Node | None) -> str:
    lines = [f"node {node.number}, {_came_from(node)}"]
    if node.proposal is not None:
        lines.append(f"plan: {_cut(node.proposal.plan, MAX_PLAN)}")
        if node.proposal.bundle.parameters:
            lines.append(f"parameters: {pairs(node.proposal.bundle.parameters)}")
    lines.append(f"result: {_result(node, baseline)}")
    if node.signals:
        lines.append(f"signals: {', '.join(node.signals)}")
    return "\n".join(lines)


def _result(node: Node, baseline: Node | None) -> str:
    evaluation = node.evaluation
    if node.state == "duplicate":
        return f"the same as node {node.same_as}"
    if evaluation is None:
        return f"nothing is known of it: {node.problem or node.state}"
    if not evaluation.correct:
        return _cut(_became(evaluation), MAX_PLAN)
    if evaluation.speedup is None:
        return f"correct, {NO_FIGURE}: {_rough(evaluation)}"
    if baseline is None:
        took = time_text(node)
        beside = f" ({took})" if took else ""
        return f"correct, {_interval(evaluation.speedup)} over the reference{beside}"
    if node.number == baseline.number:
        return f"correct, {time_text(node)}"
    return f"correct, {time_text(node)}: {_interval(evaluation.speedup)} over {_name(baseline)}"


def _cut(text: str, chars: int) -> str:
    """The text, cut at the end of a word if it is too long."""
    if len(text) <= chars:
        return text
    return f"{text[:chars].rsplit(None, 1)[0]} ... (cut)"
