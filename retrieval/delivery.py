"""Which whole kernel reaches the context of a first kernel, for every chip, language and kind of
operator: computed from the answers themselves. Does not know HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le, MaxLen

from kb.answers import Answer
from kb.errors import Unavailable
from kb.plain import Doc
from kb.problem_terms import problem_terms
from kb.scope import AccessScope
from retrieval.answer import AnswerConfig, answer
from retrieval.compose.kernels import (
    KernelRequest,
    WholeKernel,
    kernels_of,
    main_parts,
    score_of,
)
from retrieval.operators import OperatorKind, load_operators
from retrieval.request import MAX_TOKENS, RetrieveRequest
from retrieval.scope import scope_of
from retrieval.snapshot.knowledge import Chips
from retrieval.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from retrieval.knowledge_base import KnowledgeBase

BUDGET = 24_000
CHIPS = "accelerator"  # kind of hardware in the table; without families and vendors


@dataclass(frozen=True)
class DeliveredKernel:
    """A cell of the table. `kernel` is the id of the best kernel that ships for the kind of
    operator, `arrives` how much of it is in the context: whole, the main loop (every kernel entry
    and function with a loop), part, or nothing. `tokens` is the size of the context,
    `kernel_tokens` that of all kernels in it."""

    hardware: str
    language: str
    operator: str
    kernel: str
    title: str
    status: str
    arrives: Literal["whole", "main loop", "part", "nothing"]
    tokens: int
    kernel_tokens: int


@dataclass(frozen=True)
class DeliveredKernels:
    """The table, and the number of its cells whose kernel does not arrive in its main loop."""

    kernels: tuple[DeliveredKernel, ...]
    holes: int


def delivered_kernels(
    base: KnowledgeBase,
    hardware: Annotated[str, Doc("Only for this chip."), MaxLen(200)] = "",
    language: Annotated[str, Doc("Only in this language."), MaxLen(200)] = "",
    operator: Annotated[str, Doc("Only for this operator or its kind."), MaxLen(200)] = "",
    task: Annotated[Literal["write", "speed_up"], Doc("Task of the context.")] = "write",
    max_tokens: Annotated[int, Doc("Most tokens of the context."), Ge(1), Le(MAX_TOKENS)] = BUDGET,
) -> DeliveredKernels:
    """For each chip, language and kind of operator for which a whole kernel ships: whether it
    reaches the context. Each cell is the answer to a request, ranked by words alone. Raises
    Unavailable if there are no documents."""
    snapshot = base.retriever.snapshots.current()
    if not snapshot.passages:
        raise Unavailable(
            f"there are no documents in {base.settings.data_dir} yet",
            hint="Run `kernlore serve`, or `kernlore ingest --builtin`, to load the built-in ones.",
        )
    chips = snapshot.knowledge.chips(base.access)
    chosen = [chips.resolve(hardware)] if hardware else _chips(chips)
    kinds = _kinds(operator)
    cells = [
        cell
        for chip in chosen
        for name in _languages(snapshot, chips, chip, base.access)
        if not language or name == language
        for cell in _cells(snapshot, chips, chip, name, kinds, task, max_tokens, base.access)
    ]
    holes = sum(cell.arrives not in ("whole", "main loop") for cell in cells)
    return DeliveredKernels(tuple(cells), holes)


def _chips(chips: Chips) -> list[str]:
    return sorted(name for name, spec in chips.all().items() if spec.kind == CHIPS)


def _languages(snapshot: Snapshot, chips: Chips, chip: str, access: AccessScope) -> tuple[str, ...]:
    """The languages of kernels for a chip: its own, and those of kernels that were compiled."""
    scope = scope_of(
        RetrieveRequest(hardware=chip, access_scope=access),
        chips,
        lambda own: snapshot.languages_of(own, access),
    )
    compiled = (
        kernel.language
        for kernel in snapshot.kernels(scope.lineage, access)
        if kernel.status not in ("untried", "refused")
    )
    return tuple(dict.fromkeys((*scope.chip_languages, *filter(None, compiled))))


def _kinds(operator: str) -> list[OperatorKind]:
    operators = load_operators()
    kinds = list(operators.kinds.values())
    if not operator:
        return kinds
    named = operators.of(operator).kinds
    return [kind for kind in kinds if kind.id in named]


def _cells(
    snapshot: Snapshot,
    chips: Chips,
    chip: str,
    language: str,
    kinds: Sequence[OperatorKind],
    task: str,
    max_tokens: int,
    access: AccessScope,
) -> Iterator[DeliveredKernel]:
    lineage = chips.lineage(chip)
    kernels = kernels_of(snapshot, lineage, (language,), access)
    facts = chips.effective_facts(chip).keys()
    for kind in kinds:
        op = next((op for op in sorted(kind.ops) if op in problem_terms().ops), kind.id)
        traits = load_operators().of(op)
        wanted = KernelRequest(traits, lineage, (language,), facts, access)
        own = [k for k in kernels if kind.id in k.traits.kinds and score_of(k, wanted) > 0]
        if not own or traits.kinds[0] != kind.id:
            continue
        best = max(own, key=lambda kernel: (score_of(kernel, wanted), -len(kernel.code), kernel.id))
        request = RetrieveRequest(
            hardware=chip,
            language=language,
            op=op,
            task=task,
            signal=None if task == "write" else "memory_bound",
            max_tokens=max_tokens,
            access_scope=access,
        )
        result = answer(snapshot, request, AnswerConfig(embed=None)).answer
        yield _cell(kind, chip, language, best, result)


def _cell(
    kind: OperatorKind, chip: str, language: str, kernel: WholeKernel, result: Answer
) -> DeliveredKernel:
    return DeliveredKernel(
        hardware=chip,
        language=language,
        operator=kind.id,
        kernel=kernel.id,
        title=kernel.title,
        status=kernel.status,
        arrives=_arrives(kernel, result.context),
        tokens=result.context_tokens,
        kernel_tokens=sum(part.tokens for part in result.parts if part.kind == "sample"),
    )


def _arrives(kernel: WholeKernel, context: str) -> Literal["whole", "main loop", "part", "nothing"]:
    shown = _plain(context)
    if _plain(kernel.code) in shown:
        return "whole"
    if all(_plain(part) in shown for part in main_parts(kernel.code, kernel.language)):
        return "main loop"
    return "part" if f'id="{kernel.id}"' in context else "nothing"


def _plain(text: str) -> str:
    """The text with white space normalised: a whole document joins its passages by new lines."""
    return " ".join(text.split())
