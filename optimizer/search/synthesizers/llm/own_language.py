"""What a prompt says about a chip's own language: file ending, entry, how a kernel is launched, and
for each case the names of its arguments and its scalars.

All of it comes from `[toolchains.LANGUAGE]` of the hardware description. What that file says in
words goes through the fence.
"""

from __future__ import annotations

from collections.abc import Iterator

from kb.hardware.spec import ToolchainSpec
from optimizer.evaluation.toolchains.command import argument_names, scalar_values
from optimizer.search.synthesizers.base import CaseView, ProposalContext
from optimizer.search.synthesizers.llm.templates import Fence, main_suffixes, rendered

KEEP = "keep the entry and the file name ending of the kernel to start from"
USUAL_ENTRY = "its entry is `kernlore_run` unless the documents of the chip say otherwise"
LAUNCH = " How this chip's tools launch a kernel is in the block `launch` under Hardware."
SAMPLE = "A kernel in {language} that compiles and runs on this chip:"


def abi(language: str, context: ProposalContext) -> str:
    """The interface of a language that only the chip's own tools know."""
    toolchain = context.hardware.toolchains.get(language)
    packed = _is_packed(context)
    stated = toolchain is not None and _launch(language, toolchain, context, packed)
    launch = LAUNCH if stated else ""
    return rendered("abi_other.md", {"names": _names(language, context), "launch": launch}).strip()


def _names(language: str, context: ProposalContext) -> str:
    """Ending and entry of the main file; both are plain names, so they may stand outside a
    fence."""
    toolchain = context.hardware.toolchains.get(language)
    first = context.parent.proposal is None
    if toolchain is None or not (toolchain.suffix or toolchain.entry):
        return USUAL_ENTRY if first else KEEP
    parts = []
    if toolchain.suffix:
        parts.append(f"its name ends in `{main_suffixes(language, context)[0]}`")
    elif not first:
        parts.append("keep the file name ending of the kernel to start from")
    if toolchain.entry:
        parts.append(f"its entry is called `{toolchain.entry}`")
    else:
        parts.append(USUAL_ENTRY if first else "keep the entry of the kernel to start from")
    return ", ".join(parts)


def described(context: ProposalContext, fence: Fence) -> Iterator[str]:
    """For each own language a block with its launch, and one with a sample where no kernel in it is
    shown to start from. What the packed knowledge says already is not said twice."""
    proposal = context.parent.proposal
    packed = _is_packed(context)
    for language in context.hardware.languages:
        toolchain = context.hardware.toolchains.get(language)
        if toolchain is None:
            continue
        if launch := _launch(language, toolchain, context, packed):
            yield fence.around("launch", launch)
        if (
            toolchain.sample
            and not packed
            and (proposal is None or proposal.bundle.language != language)
        ):
            yield SAMPLE.format(language=language)
            yield fence.around("sample", _sample(toolchain))


def _is_packed(context: ProposalContext) -> bool:
    """Whether the knowledge base packed what the chip's tools say of themselves."""
    return context.with_knowledge and bool(context.knowledge.target)


def _launch(
    language: str, toolchain: ToolchainSpec, context: ProposalContext, packed: bool = False
) -> str:
    """Empty where the description says nothing about it. `packed` leaves out the text that the
    packed knowledge has."""
    lines = [f"language {language}:"]
    if toolchain.interface.strip() and not packed:
        lines.append(toolchain.interface.strip())
    if toolchain.arguments or toolchain.scalars:
        lines += [line for case in context.problem.cases for line in _case(case, toolchain)]
    return "\n".join(lines) if len(lines) > 1 else ""


def _case(case: CaseView, toolchain: ToolchainSpec) -> Iterator[str]:
    """The names of one case, and its scalars with their values."""
    yield f"case {case.name}"
    names = argument_names(case.signature, toolchain)
    for tensor, name in zip(case.signature.tensors, names, strict=False):
        yield f"  argument {name}: {tensor.role} {tensor.name}, {tensor.dtype} {list(tensor.shape)}"
    scalars = scalar_values(case.signature, toolchain, {**case.traits, **case.constants})
    for name, value in scalars.items():
        yield f"  scalar {name} = {value!r} ({toolchain.scalars[name].value})"


def _sample(toolchain: ToolchainSpec) -> str:
    arguments = [
        f"{a.role} {a.name}: {a.dtype} {list(a.shape)}" for a in toolchain.sample_arguments
    ]
    text = f"arguments: {'; '.join(arguments)}\n" if arguments else ""
    if toolchain.sample_reference:
        text += f"computes: {toolchain.sample_reference}\n"
    return text + toolchain.sample
