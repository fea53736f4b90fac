"""The parts of a prompt that the problem and the machine decide: what is asked, what is allowed,
how it is judged, what a candidate is handed.

Every text that did not come from a template goes through the fence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from optimizer.evaluation.abi import HEADER
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains import cpp, cuda
from optimizer.search.context import CaseView, Context, ProblemView
from optimizer.search.records import Node
from optimizer.search.synthesizers.llm.prompting.fence import Fence
from optimizer.search.synthesizers.llm.prompting.languages import C_LIKE, PYTHON_LIKE, wanted
from optimizer.search.synthesizers.llm.prompting.templates import data, rendered

# Of the evaluation, which is not imported here because it brings torch; a test holds them equal.
JUDGED: Mapping[str, str] = {
    "c_ref": "4",
    "c_eps": "2",
    "call_seconds": "30",
    "load_seconds": "120",
}
MEMORY_GIB = 8  # of a candidate on a CPU, beyond what is mapped before it is loaded
MAX_TRAITS = 16  # of one case
# Traits of allocations and views, which say of a case only what its shapes and values say.
_PLUMBING = re.compile(
    r"(?:(?:new_)?(?:empty|zeros|ones|full)|set_|_?(?:unsafe_)?view|reshape|arange|expand|as_strided"
    r"|repeat_interleave)(?:_like)?(?:#\d+)?\."
)
CPU_ALIGNMENT = 64  # bytes; what torch's CPU allocator gives
# Flag variants that contradict a strict precision, or the machine that the run is for.
NOT_OFFERED = ("march",)
NOT_STRICT = ("fast_math",)


def problem(told: ProblemView, fence: Fence) -> str:
    head = f"{told.name}: operator {told.op}. {told.summary}".strip()
    cases = "\n".join(_case(case) for case in told.cases)
    return "\n".join(
        [
            fence.around("problem", head),
            "The reference, whose results count:",
            fence.around("problem-source", told.source),
            "Cases (tensors in the order of the interface, all contiguous):",
            fence.around("cases", cases),
        ]
    )


def _case(case: CaseView) -> str:
    lines = [f"case {case.name} ({'timed' if case.timed else 'correctness only'})"]
    for tensor in case.signature.tensors:
        lines.append(f"  {tensor.role} {tensor.name}: {tensor.dtype} {list(tensor.shape)}")
    if told := {name: value for name, value in case.traits.items() if not _PLUMBING.match(name)}:
        shown = dict(list(told.items())[:MAX_TRAITS])
        lines.append(f"  arguments of the reference's operators: {pairs(shown)}")
    return "\n".join(lines)


def policy(told: ProblemView, fence: Fence) -> str:
    """In sentences; what has none is shown as it stands."""
    sentences = data("policy.json")
    lines, unknown = [], []
    for name, value in told.policy.items():
        sentence = sentences.get(name, {}).get(value)
        if sentence is not None:
            lines.append(f"- {sentence}")
        else:
            unknown.append(f"{name}: {value}")
    if unknown:
        lines.append(fence.around("policy", "\n".join(unknown)))
    return "\n".join(lines) or "Nothing special is stated."


def judging(context: Context) -> str:
    on_cpu = context.hardware.device == "cpu"
    memory = f" {MEMORY_GIB} GiB of memory beside the inputs and outputs." if on_cpu else ""
    return rendered("judging.md", {**JUDGED, "memory": memory}).strip()


def hardware(context: Context, fence: Fence) -> str:
    told = context.hardware
    lines = [f"id: {told.id}", f"lineage: {' -> '.join(told.lineage)}"]
    if told.device:
        lines.append(f"device: {told.device}")
    if compiler := _compiler(context):
        lines.append(f"compiler: {compiler}")
    return fence.around("hardware", "\n".join(lines))


def _compiler(context: Context) -> str:
    """As it reports itself where something was compiled in the wanted language already."""
    made: list[Node] = [context.parent, *context.tried]
    found = (node.evaluation for node in made if node.proposal is not None)
    language = wanted(context)
    return next((e.toolchain for e in found if e is not None and e.language == language), "")


def interface(context: Context) -> str:
    """Of the wanted language, then of others that are taken too."""
    language = wanted(context)
    parts = [f"Write it in {language}.", _abi(language, context)]
    shown = {_family(language)}
    for other in context.hardware.languages:
        if other != language:
            parts.append(f'Taken too: {other} (`"language": "{other}"`).')
            if _family(other) not in shown or other == "triton":
                parts.append(_abi(other, context, again=_family(other) in shown))
            shown.add(_family(other))
    return "\n\n".join(parts)


def _family(language: str) -> str:
    families = {"python": PYTHON_LIKE, "c": C_LIKE}
    return next((name for name, members in families.items() if language in members), language)


def _abi(language: str, context: Context, again: bool = False) -> str:
    """again: the family's part was shown already."""
    if language in C_LIKE:
        build = _cpp_build(context) if language == "cpp" else _cuda_build()
        return rendered("abi_c.md", {"header": HEADER.strip(), "build": build}).strip()
    if language not in PYTHON_LIKE:
        return rendered("abi_other.md", {}).strip()
    parts = [] if again else ["abi_python.md"]
    if language == "triton":
        parts.append("abi_triton.md")
    return "\n".join(rendered(name, {}).strip() for name in parts)


def _cpp_build(context: Context) -> str:
    plain = Bundle({"kernel.cpp": ""}, "kernel.cpp", "cpp", "kernlore_run", origin="llm")
    strict = context.problem.policy.get("precision") != "relaxed"
    hidden = NOT_OFFERED + (NOT_STRICT if strict else ())
    variants = ", ".join(
        f"{name} ({' | '.join(values)})"
        for name, values in cpp.VARIANTS.items()
        if name not in hidden
    )
    flags = " ".join([*cpp.BASE_FLAGS, *cpp.flags_of(plain), "-std=gnu++20"])
    told = {"flags": flags, "seconds": f"{cpp.LIMITS.seconds:g}", "variants": variants}
    return rendered("build_cpp.md", {**told, "alignment": str(CPU_ALIGNMENT)}).strip()


def _cuda_build() -> str:
    told = {"flags": " ".join(cuda.FLAGS), "seconds": f"{cuda.LIMITS.seconds:g}"}
    return rendered("build_cuda.md", told).strip()


def number(value: object) -> str:
    """Whole numbers in full: 1073741824, not 1.07374e+09."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else f"{value:.6g}"
    return str(value)


def pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={number(value)}" for name, value in values.items())
