"""A small problem, the contexts of a search over it, and the proposals from its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kb.answers import SignalFinding
from optimizer.evaluation.records import CaseCheck, EvaluationVerdict, Interval
from optimizer.search.knowledge import ShownKnowledge, ShownMove
from optimizer.search.records import REFERENCE, Node, Proposal
from optimizer.search.synthesizers.base import HardwareView, ProblemView, ProposalContext
from optimizer.search.synthesizers.compiler.configurations import Installed, shipped
from optimizer.search.synthesizers.compiler.synthesizer import CompilerSynthesizer
from tests.evaluations import RIGHT

SOURCE = """
import torch
import torch.nn as nn

rows, cols = 48, 96

class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(cols) + 0.5)

    def forward(self, x):
        e = torch.exp(x - x.amax(dim=-1, keepdim=True))
        return e / e.sum(dim=-1, keepdim=True) * self.scale

def get_inputs():
    return [torch.randn(rows, cols)]

def get_init_inputs():
    return [cols]
"""

REFERENCE_NODE = Node(REFERENCE, None, "evaluated", None, None)
KNOWN = Installed(
    {"default": {}, "reduce-overhead": {}, "max-autotune-no-cudagraphs": {"max_autotune": True}},
    frozenset(option.name for option in shipped().options),
)


def context(
    problem: ProblemView,
    parent: Node = REFERENCE_NODE,
    tried: Sequence[Node] = (),
    device: str | None = "cpu",
    moves: tuple[ShownMove, ...] = (),
) -> ProposalContext:
    return ProposalContext(
        problem=problem,
        hardware=HardwareView("x86-64", ("x86-64", "any"), device, ("torch",), {}),
        parent=parent,
        seen=(),
        best=None,
        knowledge=ShownKnowledge(moves=moves),
        tried=tried,
        step=len(tried) + 1,
        seed=1,
        run_id="run_1",
        max_tokens=1000,
    )


def evaluated(number: int, proposal: Proposal, speedup: float, *signals: str) -> Node:
    """A node with a finished evaluation."""
    evaluation = replace(
        RIGHT,
        candidate=proposal.bundle.sha256,
        language="torch",
        reached="benchmark",
        checks=(CaseCheck("main", 1, True),),
        speedup=Interval(speedup, speedup, speedup, 6),
        verdict=EvaluationVerdict(tuple(SignalFinding(signal, "B") for signal in signals)),
    )
    return Node(number, proposal.parent, "evaluated", proposal, evaluation)


def all_proposals(problem: ProblemView, **library: str | None) -> list[Proposal]:
    """All proposals from the reference, in order."""
    synthesizer = CompilerSynthesizer(known=lambda: KNOWN)
    tried: list[Node] = []
    while True:
        proposal = synthesizer.propose(context(problem, tried=tried, **library))  # type: ignore[arg-type]
        if proposal is None:
            return [node.proposal for node in tried if node.proposal is not None]
        tried.append(evaluated(len(tried) + 1, proposal, 1.0))
