"""The contract of synthesizers: the context that they see, as data, and the proposal they return.

A new synthesizer implements `Synthesizer` and is named in the wiring. The prompt of a language
model is one rendering of the context. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kb.hardware.spec import ToolchainSpec
from optimizer.evaluation.abi import Signature
from optimizer.search.knowledge import Knowledge
from optimizer.search.records import Node, Proposal


@dataclass(frozen=True)
class CaseView:
    """A case as a proposer sees it; `traits` are numbers that the problem's code holds. `timed` is
    False for a case that only checks correctness. `constants` are numbers of the reference by plain
    name, which a toolchain's scalars may read. `source` is the problem file with this case's
    constants in it, empty where it is not known. `kinds` counts the operators of the reference by
    kind and `work` weighs them (see `Observed`), both empty where that is not known; `quantities`
    are the case's sizes by the names of predicates (see `shape_quantities`)."""

    name: str
    signature: Signature
    traits: Mapping[str, int | float | str | bool]
    timed: bool
    dtype: str | None
    constants: Mapping[str, int | float | bool] = field(default_factory=dict)
    source: str = ""
    kinds: Mapping[str, int] = field(default_factory=dict)
    quantities: Mapping[str, float | str] = field(default_factory=dict)
    # Which kernels torch takes on the machine at hand is in it, and what they keep for themselves.
    work: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class ProblemView:
    """The problem without the values of its tensors; `policy` says in words what is allowed.
    `hidden_cases` is whether cases that are not shown decide at the end, None where that is not
    known. `op` is what its declaration or its source calls it; `mostly` is the operator that most
    of its work is in, "" where that is `op` or not known."""

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
    """The processor that candidates run on. `identification` is what tells its generations apart
    where the name does not, `processors` counts the logical ones that may be used and `threads`
    those that a kernel runs with. `caches` are in bytes by level: a core's own ones, and of the
    last level what the core sees. `extensions` and `lacks` are ids of kb/hardware/extensions.toml,
    both empty where it does not say what it has. `megahertz` is its clock, None where the operating
    system does not say."""

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
    """What the device was measured to reach (optimizer/evaluation/collectors/ceilings.py). `moving`
    has what was done, over how many bytes, and bytes a second; `flops` are flop/s by dtype."""

    moving: tuple[tuple[str, int, float], ...]
    flops: Mapping[str, float]


@dataclass(frozen=True)
class HardwareView:
    """The target of a search. `languages` are those with a toolchain here, the preferred language
    first; `device` is `cpu`, `cuda`, or None where the hardware is not on this machine.
    `toolchains` are the command templates of its own languages, with what they say of a kernel's
    entry, file ending, arguments and launch. `machine` is the processor where that is the target
    and is here, else None; `rates` are those of the device, None where it was not measured."""

    id: str
    lineage: tuple[str, ...]
    device: str | None
    languages: tuple[str, ...]
    facts: Mapping[str, float | str]
    toolchains: Mapping[str, ToolchainSpec] = field(default_factory=dict)
    machine: MachineView | None = None
    rates: RatesView | None = None

    @property
    def lacks(self) -> tuple[str, ...]:
        """Extensions of its family that the processor here lacks."""
        return self.machine.lacks if self.machine is not None else ()


@dataclass(frozen=True)
class ProposalContext:
    """Everything that a synthesizer sees for one proposal.

    `seen` are the nodes that the memory operator shows beside the parent; `tried` are all nodes of
    the run but the reference; `best` is the best node so far. `baseline` is what speed-ups are over
    on a chip that only its own commands run, None where that is the reference. `step` is the number
    of the node to come. `seed` seeds all randomness of the proposal. `max_tokens` bounds knowledge,
    earlier kernels and log in a prompt. Without `with_knowledge` no knowledge is shown, without
    `with_memory` nothing of earlier kernels.
    """

    problem: ProblemView
    hardware: HardwareView
    parent: Node
    seen: Sequence[Node]
    best: Node | None
    knowledge: Knowledge
    tried: Sequence[Node]
    step: int
    seed: int
    run_id: str
    max_tokens: int
    with_knowledge: bool = True
    with_memory: bool = True
    baseline: Node | None = None


@dataclass(frozen=True)
class Asking:
    """A model is being asked for candidate `number`, for `seconds` by now; the call ends after
    `most_seconds`."""

    model: str
    number: int
    seconds: float
    most_seconds: float

    def __str__(self) -> str:
        times = f"{self.seconds:.0f} s, at most {self.most_seconds:.0f} s"
        return f"asking {self.model} for candidate {self.number} ({times})"


class ProposalFailed(Exception):
    """An attempt without a candidate, for example after a nonsense answer of a model; another
    attempt may succeed. The message goes to the run's log."""


class Unreachable(ProposalFailed):
    """An attempt without a candidate because nothing answers where the proposer asks."""


class Synthesizer(Protocol):
    """Proposes changes of a node.

    `first_tries` is how many of its candidates from the reference a run tries before its policy
    chooses what to change, so that an early success of one proposer does not silence the others.
    """

    name: str
    first_tries: int

    def propose(self, context: ProposalContext) -> Proposal | None:
        """A candidate that changes `context.parent`, or None when nothing is left to try from it.

        The result depends on `context` alone, except for a model's answers, which are stored.
        Raises ProposalFailed.
        """
        ...


@runtime_checkable
class ReadsContext(Protocol):
    """A synthesizer whose author reads the packed context: a model, or an optimizer of one's own.

    `context_tokens` bounds what the knowledge base packs for it.
    """

    context_tokens: int


@runtime_checkable
class SaysWhy(Protocol):
    """A synthesizer that knows why it has no candidate for a problem.

    `nothing_because` says it in words; empty while it has candidates.
    """

    nothing_because: str


@runtime_checkable
class OfRoles(Protocol):
    """A synthesizer that can only change parameters with a role (see kb/moves_vocabulary.py)."""

    def roles(self, problem: ProblemView) -> tuple[str, ...]:
        """The roles of all parameters that it can change for this problem, sorted."""
        ...
