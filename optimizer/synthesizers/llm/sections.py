"""The parts of a prompt in words: problem, hardware, kernels and what was measured about them.

Every text that did not come from a template goes through the fence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from optimizer.abi import HEADER
from optimizer.search.context import CaseView, Context, HardwareView, ProblemView
from optimizer.search.records import REFERENCE, Node
from optimizer.synthesizers.llm.fence import Fence
from optimizer.synthesizers.llm.languages import C_LIKE, PYTHON_LIKE, wanted
from optimizer.synthesizers.llm.templates import rendered

MAX_METRICS = 60
MAX_EVIDENCE = 400  # characters of one piece
MAX_PLAN = 600
MAX_MESSAGE = 2_000


def problem(told: ProblemView, fence: Fence) -> str:
    head = f"{told.name}: operator {told.op}. {told.summary}".strip()
    cases = "\n".join(_case(case) for case in told.cases)
    return "\n".join(
        [
            fence.around("problem", head),
            "The reference, whose results count:",
            fence.around("problem-source", told.source),
            "Cases (tensors in the order of the interface):",
            fence.around("cases", cases),
        ]
    )


def _case(case: CaseView) -> str:
    lines = [f"case {case.name} ({'timed' if case.timed else 'correctness only'})"]
    for tensor in case.signature.tensors:
        lines.append(f"  {tensor.role} {tensor.name}: {tensor.dtype} {list(tensor.shape)}")
    if case.traits:
        lines.append(f"  traits: {_pairs(case.traits)}")
    return "\n".join(lines)


def policy(told: ProblemView, fence: Fence) -> str:
    lines = [f"{name}: {value}" for name, value in told.policy.items()]
    return fence.around("policy", "\n".join(lines)) if lines else "Nothing special is stated."


def hardware(told: HardwareView, fence: Fence) -> str:
    lines = [f"id: {told.id}", f"lineage: {' -> '.join(told.lineage)}"]
    if told.device:
        lines.append(f"device: {told.device}")
    return fence.around("hardware", "\n".join(lines))


def interface(context: Context) -> str:
    language = wanted(context)
    if language in C_LIKE:
        return rendered("abi_c.md", {"header": HEADER.strip()})
    return rendered("abi_python.md" if language in PYTHON_LIKE else "abi_other.md", {})


def parent(node: Node, fence: Fence) -> str:
    if node.proposal is None:
        return "The reference above: nothing was written yet. Write the first kernel."
    bundle = node.proposal.bundle
    told = [f"Node {node.number}: {bundle.language}, entry and files:"]
    told.append(fence.around("entry", bundle.entry))
    for name in sorted(bundle.files, key=lambda name: (name != bundle.main, name)):
        told.append(fence.around("source", f"file: {name}\n{bundle.files[name]}"))
    if bundle.parameters:
        told.append(fence.around("parameters", _pairs(bundle.parameters)))
    return "\n".join(told)


def verdict(node: Node, fence: Fence, log_chars: int) -> str:
    """What the harness found. log_chars: of the log's end; errors stand there."""
    found = node.evaluation
    if found is None:
        return f"Nothing: {node.state}."
    lines = [f"validity: {found.validity}, timing: {found.timing}, reached: {found.reached}"]
    if found.speedup is not None and node.correct:
        lines.append(f"speed-up over the reference: {found.speedup}")
    if found.message:
        lines.append(f"message: {_cut(found.message, MAX_MESSAGE)}")
    lines += [_signal(signal) for signal in found.verdict.get("signals", ())]
    lines += [
        f"  {t.case}: {t.candidate_us} us, reference {t.baseline_us} us" for t in _timed(node)
    ]
    blocks = [fence.around("verdict", "\n".join(lines))]
    if found.metrics:
        blocks.append(fence.around("metrics", _metrics(found.metrics)))
    if found.log and not found.correct:
        blocks.append(fence.around("log", _tail(found.log, log_chars)))
    return "\n".join(blocks)


def _timed(node: Node) -> Iterable[Any]:
    timings = node.evaluation.timings if node.evaluation is not None else ()
    return (timing for timing in timings if timing.candidate_us is not None)


def _signal(signal: Mapping[str, Any]) -> str:
    confidence = signal.get("confidence")
    sure = f" (confidence {confidence:.2g})" if isinstance(confidence, int | float) else ""
    evidence = signal.get("evidence")
    told = evidence if isinstance(evidence, str) else json.dumps(evidence, default=str)
    return f"signal {signal['id']}{sure}: {_cut(told, MAX_EVIDENCE) if evidence else ''}".rstrip()


def _metrics(metrics: Mapping[str, float | str]) -> str:
    rows = sorted(metrics.items())[:MAX_METRICS]
    return "\n".join(f"{name} = {number(value)}" for name, value in rows)


def seen(nodes: Iterable[Node], fence: Fence) -> str:
    """Earlier kernels: what was planned and what came of it."""
    return "\n".join(fence.around("earlier", _outcome(node)) for node in nodes)


def best(context: Context, fence: Fence) -> str:
    node = context.best
    if node is None or node.number in (REFERENCE, context.parent.number):
        return ""
    return "The best so far:\n" + fence.around("best", _outcome(node))


def _outcome(node: Node) -> str:
    lines = [f"node {node.number}, changed from node {node.parent}: {node.state}"]
    if node.proposal is not None:
        lines.append(f"plan: {_cut(node.proposal.plan, MAX_PLAN)}")
        if node.proposal.bundle.parameters:
            lines.append(f"parameters: {_pairs(node.proposal.bundle.parameters)}")
    if node.speedup is not None and node.correct:
        lines.append(f"speed-up over the reference: {node.speedup}")
    if node.evaluation is not None and not node.correct:
        lines.append(f"{node.evaluation.validity}: {_cut(node.evaluation.message, MAX_PLAN)}")
    if node.signals:
        lines.append(f"signals: {', '.join(node.signals)}")
    return "\n".join(lines)


def number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={number(value)}" for name, value in values.items())


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]} ... (cut)"


def _tail(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"(cut) ... {text[-chars:]}"
