"""Proposes variants of the code samples of a manual: the unchanged sample first, then changes of
its constants within the limits of the manual and of the chip's facts.

A sample is a recipe with placeholders for sizes, which are filled with the problem's sizes first.
The evaluation decides whether it computes the problem.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kb.hardware.table_reader import Problems
from optimizer.evaluation.abi import TensorSpec
from optimizer.search.records import REFERENCE, Proposal, Value
from optimizer.search.synthesizers.base import HardwareView, ProblemView, ProposalContext
from optimizer.search.synthesizers.recipe.recipe import (
    PLACEHOLDER,
    ROLE_OF,
    Recipe,
    instantiate,
    parse_recipe,
)
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer, fit, start

NAME = "sample"
_TEMPLATE = "sample"


@dataclass(frozen=True)
class ManualSample:
    """A code sample of a manual. `id` is that of the stored recipe proposal, `source` its section
    and document in words; `body` has the form that ingestion stores."""

    id: str
    name: str
    language: str
    source: str
    body: Mapping[str, Any]

    @property
    def entry(self) -> str:
        """The name of the kernel's function."""
        return str(self.body["entry"])


def bind(sample: ManualSample, problem: ProblemView, name: str = "") -> Recipe | None:
    """The sample as a recipe with the sizes of the problem's first timed case; None if its tensors
    differ from the problem's. `name` is that of the recipe, by default the sample's id. Raises
    InvalidKnowledge for an unreadable body."""
    tensors = problem.main.signature.tensors
    inputs = [t for t in tensors if t.role != "output"]
    outputs = [t for t in tensors if t.role == "output"]
    sizes: dict[str, int] = {}
    for role, actual in (("input", inputs), ("output", outputs)):
        patterns = [t["dims"] for t in sample.body["tensors"] if t["role"] == role]
        if len(patterns) != len(actual):
            return None
        for dims, tensor in zip(patterns, actual, strict=True):
            if not _same_sizes(dims, tensor, sizes):
                return None
    raw = {
        "format": 1,
        "language": sample.language,
        "template": _TEMPLATE,
        "tensors": [_pattern(tensor) for tensor in tensors],
        "parameters": list(sample.body["parameters"]),
        "constraints": [_sized(c["predicate"], sizes) for c in sample.body["constraints"]],
    }
    problems = Problems(f"the sample of {sample.source}")
    files = {_TEMPLATE: _sized(sample.body["template"], sizes)}
    recipe = parse_recipe(name or sample.id, raw, files, problems)
    problems.raise_if_any()
    return recipe


def _same_sizes(dims: Sequence[str], tensor: TensorSpec, sizes: dict[str, int]) -> bool:
    if len(dims) != len(tensor.shape):
        return False
    return all(
        sizes.setdefault(dim, size) == size for dim, size in zip(dims, tensor.shape, strict=True)
    )


def _pattern(tensor: TensorSpec) -> dict[str, Any]:
    return {
        "name": "t_" + re.sub(r"\W", "_", tensor.name),
        "role": ROLE_OF[tensor.role],
        "dtypes": [tensor.dtype],
        "dims": [str(size) for size in tensor.shape],
    }


def _sized(text: str, sizes: Mapping[str, int]) -> str:
    """The text with sizes filled in; placeholders of constants stay."""

    def put(match: re.Match[str]) -> str:
        return str(sizes[match[1]]) if match[1] in sizes else match[0]

    return PLACEHOLDER.sub(put, text)


@dataclass(frozen=True)
class _BoundSample:
    """A sample that fits a problem, as a recipe with its sizes."""

    sample: ManualSample
    recipe: Recipe

    def beginning(self, values: Mapping[str, Value]) -> str:
        """A phrase about the difference of the first values from the sample's own."""
        defaults = self.recipe.defaults
        changed = [f"{n} = {v}" for n, v in values.items() if v != defaults[n]]
        if not changed:
            return "as it stands."
        return f"as near to it as the limits allow, {', '.join(changed)}."

    def marked(self, proposal: Proposal, change: str, moves: Sequence[str] = ()) -> Proposal:
        """A proposal of the recipe as a proposal of the sample."""
        return replace(
            proposal,
            synthesizer=NAME,
            bundle=replace(proposal.bundle, entry=self.sample.entry),
            plan=f"From the manual's sample, {self.sample.source}: {change}",
            attributed=(self.sample.id, *moves),
        )


class SampleSynthesizer:
    """Proposes variants of the samples in the manuals of one chip."""

    name = NAME

    def __init__(self, samples: Sequence[ManualSample]) -> None:
        self._samples = tuple(samples)
        self.first_tries = max(1, len(self._samples))
        self._known: tuple[str, dict[str, _BoundSample], RecipeSynthesizer] | None = None

    def _for(self, problem: ProblemView) -> tuple[dict[str, _BoundSample], RecipeSynthesizer]:
        """The samples that fit, by the recipe's name: the sample's name, or its id if two samples
        share a name."""
        if self._known is None or self._known[0] != problem.name:
            names = Counter(sample.name for sample in self._samples)
            bindings = [
                (sample, bind(sample, problem, sample.name if names[sample.name] == 1 else ""))
                for sample in self._samples
            ]
            bound = {r.name: _BoundSample(sample, r) for sample, r in bindings if r is not None}
            recipes = [item.recipe for item in bound.values()]
            languages = [recipe.language for recipe in recipes]
            self._known = (problem.name, bound, RecipeSynthesizer(recipes, languages))
        return self._known[1], self._known[2]

    def propose(self, context: ProposalContext) -> Proposal | None:
        """The next variant of a sample; None if nothing is left. Raises InvalidKnowledge for an
        unreadable sample."""
        bound, recipes = self._for(context.problem)
        proposal = recipes.propose(context)
        if proposal is None or proposal.recipe is None:
            return None
        sample = bound[proposal.recipe]
        if context.parent.number == REFERENCE:
            return sample.marked(proposal, sample.beginning(proposal.values))
        return sample.marked(proposal, proposal.plan, proposal.attributed)

    def first(self, problem: ProblemView, hardware: HardwareView) -> Proposal | None:
        """The first sample that fits, unchanged if the limits allow that: the baseline of the other
        candidates. None if no sample fits."""
        bound, _ = self._for(problem)
        for item in bound.values():
            fitting = fit(item.recipe, problem, hardware.facts)
            values = start(fitting, hardware.facts) if fitting is not None else None
            if fitting is None or values is None:
                continue
            bundle = instantiate(item.recipe, values, fitting.binding, problem.source)
            proposal = Proposal(
                bundle,
                NAME,
                recipe=item.recipe.name,
                values=dict(values),
                cases=fitting.cases,
            )
            return item.marked(proposal, item.beginning(values))
        return None
