"""Interface of synthesizers: the context that they get, as data, and the proposal they return.

The prompt of a language model is one rendering of the context. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kb.hardware.spec import ToolchainSpec
from optimizer.evaluation.abi import Signature
from optimizer.search.knowledge import ShownKnowledge
from optimizer.search.records import Node, Proposal


@dataclass(frozen=True)
class CaseView:
    """A case as proposers see it.

    `traits` are arguments of the reference's operators. `timed` is False for a case that only
    checks correctness. `constants` are numbers of the reference by plain name, which a toolchain's
    scalars may read. `source` is the problem file with this case's constants, "" if unknown.
    `kinds` counts the operators of the reference by kind and `work` weighs them (see `Observed`),
    both empty if unknown. `overwritten` names the inputs that the reference changes in
    place, which a candidate may only read. `quantities` are sizes by the names of predicates
    (`shape_quantities`).
    """

    name: str
    signature: Signature
    traits: Mapping[str, int | float | str | bool]
    timed: bool
    dtype: str | None
    constants: Mapping[str, int | float | bool] = field(default_factory=dict)
    source: str = ""
    kinds: Mapping[str, int] = field(default_factory=dict)
    quantities: Mapping[str, float | str] = field(default_factory=dict)
    overwritten: tuple[str, ...] = ()
    # Depends on the kernels that torch chooses on this machine, so it is not compared.
    work: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class ProblemView:
    """The problem without the values of its tensors.

    `policy` lists the permissions. `hidden_cases` is whether cases that are not shown decide in the
    end, None if unknown. `op` is named by the declaration or the source; `mostly` is the operator
    with most of the work, "" if that is `op` or unknown.
    """

    name: str
    op: str
    summary: str
    source: str
    cases: tuple[CaseView, ...]
    policy: Mapping[str, str]
    hidden_cases: bool | None = None
    mostly: str = ""

    @property
    def main(self) -> CaseView:
        """The first timed case."""
        return next((case for case in self.cases if case.timed), self.cases[0])


@dataclass(frozen=True)
class MachineView:
    """The processor that candidates run on.

    `identification` distinguishes generations of one name. `processors` counts the usable logical
    processors, `threads` those of a kernel. `caches` are in bytes by level, as one core sees them.
    `extensions` and `lacks` are ids of kb/hardware/extensions.toml, both empty if unknown.
    `megahertz` is the clock, None if unknown.
    """

    name: str
    identification: str
    processors: int
    threads: int
    caches: Mapping[str, int] = field(default_factory=dict)
    extensions: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    megahertz: float | None = None


@dataclass(frozen=True)
class RatesView:
    """Measured ceilings of the device (optimizer/evaluation/collectors/ceilings.py): `moving` holds
    activity, bytes and bytes a second; `flops` are flop/s by dtype."""

    moving: tuple[tuple[str, int, float], ...]
    flops: Mapping[str, float]


@dataclass(frozen=True)
class HardwareView:
    """The target of a search.

    `refused` are names that the chip's manuals define and its toolchain does not know. `versions`
    are the versions that its tools state, by language.

    `device` is `cpu`, `cuda`, or None for a chip that only its own commands run. `languages` are
    those with a toolchain, the preferred one first; `toolchains` are the command templates of the
    chip's own languages. `machine` is the processor of this machine if it is the target. `rates`:
    None if the device was not measured.
    """

    id: str
    lineage: tuple[str, ...]
    device: str | None
    languages: tuple[str, ...]
    facts: Mapping[str, float | str]
    toolchains: Mapping[str, ToolchainSpec] = field(default_factory=dict)
    machine: MachineView | None = None
    rates: RatesView | None = None
    refused: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Extensions of its family that the processor here lacks."""
        return self.machine.lacks if self.machine is not None else ()


@dataclass(frozen=True)
class ProposalContext:
    """Everything that a synthesizer sees for one proposal.

    `seen` are the earlier nodes that the memory operator chose; `tried` are all nodes except the
    reference; `best` is the best node so far. `baseline` is the node that speed-ups are relative to
    on a chip that only its own commands run, None for the reference. `step` is the number of the
    next node; `seed` seeds all randomness of the proposal. `max_tokens` bounds knowledge, earlier
    kernels and log in a prompt. Without `with_knowledge` no knowledge is shown, without
    `with_memory` no earlier kernels.
    """

    problem: ProblemView
    hardware: HardwareView
    parent: Node
    seen: Sequence[Node]
    best: Node | None
    knowledge: ShownKnowledge
    tried: Sequence[Node]
    step: int
    seed: int
    run_id: str
    max_tokens: int
    with_knowledge: bool = True
    with_memory: bool = True
    baseline: Node | None = None


@dataclass(frozen=True)
class ModelCall:
    """A request for candidate `number` to a model, running for `seconds` of at most
    `most_seconds`."""

    model: str
    number: int
    seconds: float
    most_seconds: float

    def __str__(self) -> str:
        times = f"{self.seconds:.0f} s, at most {self.most_seconds:.0f} s"
        return f"asking {self.model} for candidate {self.number} ({times})"


class ProposalFailed(Exception):
    """An attempt without a candidate, for example after an unusable answer of a model; another
    attempt may succeed. The message goes to the run's log."""


class Unreachable(ProposalFailed):
    """The model of the proposer could not be reached."""


class Synthesizer(Protocol):
    """Proposes changes of a node.

    `first_tries` is the number of its candidates from the reference that a run tries before the
    policy chooses parents, so that an early success of one proposer does not exclude the others.
    """

    name: str
    first_tries: int

    def propose(self, context: ProposalContext) -> Proposal | None:
        """A candidate that changes `context.parent`, or None if nothing is left to try.

        Depends on `context` alone, except for a model's answers, which are stored. Raises
        ProposalFailed.
        """
        ...


@runtime_checkable
class ReadsContext(Protocol):
    """A synthesizer that reads the composed context of an answer: a model or an external optimizer.
    `context_tokens` bounds that context, `reader` is its class in `retrieval.request.READERS`, None
    for the full context."""

    context_tokens: int
    reader: str | None


@runtime_checkable
class ExplainsAbsence(Protocol):
    """A synthesizer that gives a reason if it has no candidate for a problem, "" otherwise."""

    nothing_because: str


@runtime_checkable
class LimitedToRoles(Protocol):
    """A synthesizer that only changes parameters with a role (kb/problem_terms.py)."""

    def roles(self, problem: ProblemView) -> tuple[str, ...]:
        """Sorted roles of the parameters that it can change for this problem."""
        ...
