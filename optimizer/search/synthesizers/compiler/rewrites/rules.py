"""The rewrite rules, and their application to a graph.

A rule changes a node of a graph in place and returns whether it did. A rewrite must leave fewer
operators, unless it changes order or layout, or moves work from activations to smaller weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import fx
from torch.fx import Node

from optimizer.search.synthesizers.compiler.configurations import ForwardText
from optimizer.search.synthesizers.compiler.rewrites import fuse, layers, simplify
from optimizer.search.synthesizers.compiler.rewrites.pattern import operators
from optimizer.search.synthesizers.compiler.rewrites.trace import (
    SymbolicGraph,
    cached_constant,
    forward_text,
)

MAX_STEPS = 200  # of one rule, against rules that never end


@dataclass(frozen=True)
class RewriteRule:
    """A rewrite rule; `about` describes it. `fewer`: it must remove operators. `alone`: whether it
    pays depends on the machine, so the set of all exact rules leaves it out."""

    name: str
    about: str
    apply: Callable[[Node], bool]
    fewer: bool = True
    alone: bool = False


RULES: tuple[RewriteRule, ...] = (
    RewriteRule("idle_module", "leaves out modules that do nothing", simplify.idle_module),
    RewriteRule("done_twice", "computes equal expressions once", simplify.done_twice),
    RewriteRule("neutral_number", "leaves out * 1, / 1, - 0 and ** 1", simplify.neutral_number),
    RewriteRule("twice_undone", "leaves out pairs that undo each other", simplify.twice_undone),
    RewriteRule("same_again", "leaves out repeated casts and copies", simplify.same_again),
    RewriteRule(
        "needless_copy", "leaves out clones of intermediate results", simplify.needless_copy
    ),
    RewriteRule("same_shape", "leaves out views to the same shape", simplify.same_shape),
    RewriteRule("numbers_together", "combines constant numbers", simplify.numbers_together),
    RewriteRule("softmax", "calls softmax for exp over its sum", fuse.softmax),
    RewriteRule("log_softmax", "calls log_softmax", fuse.log_softmax),
    RewriteRule("logsumexp", "calls logsumexp", fuse.logsumexp),
    RewriteRule("layer_norm", "calls layer_norm", fuse.layer_norm),
    RewriteRule("rms_norm", "calls rms_norm", fuse.rms_norm),
    RewriteRule("gelu", "calls gelu", fuse.gelu),
    RewriteRule("silu", "calls silu", fuse.silu),
    RewriteRule("attention", "calls scaled_dot_product_attention", fuse.attention),
    RewriteRule(
        "cheaper_order", "multiplies in the cheaper order", fuse.cheaper_order, fewer=False
    ),
    RewriteRule("merged_products", "merges products into a batched one", fuse.merged_products),
    RewriteRule("linear", "calls linear for a product and its bias", fuse.linear),
    RewriteRule("added_product", "adds inside the product's operator", fuse.added_product),
    RewriteRule("common_factor", "multiplies by a common factor once", simplify.common_factor),
    RewriteRule(
        "linear_twice", "multiplies two layers' weights first", layers.linear_twice, fewer=False
    ),
    RewriteRule(
        "norm_in_weights",
        "folds batch norm into the weights before it",
        layers.norm_in_weights,
        fewer=False,
    ),
    RewriteRule(
        "scale_in_weights",
        "folds a scale into the weights before it",
        layers.scale_in_weights,
        fewer=False,
    ),
    RewriteRule("kept_constant", "makes constant tensors once", cached_constant),
    RewriteRule(
        "channels_last",
        "lays images out with channels last",
        layers.channels_last,
        fewer=False,
        alone=True,
    ),
)


@dataclass(frozen=True)
class Rewritten:
    """A rewritten forward; `before` and `after` count the operators of one call."""

    rules: tuple[RewriteRule, ...]
    text: ForwardText
    before: int
    after: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the applied rules, in their order."""
        return tuple(rule.name for rule in self.rules)


def rewrite(traced: SymbolicGraph, rules: Sequence[RewriteRule]) -> Rewritten | None:
    """The graph after those of these rules that apply; None if none does."""
    module = copy_of(traced.graph)
    before = operators(module.graph)
    applied = [rule for rule in rules if _applied(module, rule)]
    text = forward_text(module.graph) if applied else None
    if text is None:
        return None
    return Rewritten(tuple(applied), text, before, operators(module.graph))


def variants(traced: SymbolicGraph) -> list[Rewritten]:
    """All exact rules together, then all rules, then each rule alone."""
    exact = [rule for rule in RULES if not rule.alone]
    sets = [exact, list(RULES), *([rule] for rule in RULES)]
    rewrites: list[Rewritten] = []
    for rules in sets:
        rewritten = rewrite(traced, rules)
        if rewritten is not None and all(rewritten.text != other.text for other in rewrites):
            rewrites.append(rewritten)
    return rewrites


def copy_of(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph over the same modules."""
    graph = fx.Graph()
    places: dict[Node, Node] = {}
    result = graph.graph_copy(module.graph, places)
    graph.output(result)
    for old, new in places.items():
        new.meta = copy.copy(old.meta)
    return fx.GraphModule(module, graph)


def _applied(module: fx.GraphModule, rule: RewriteRule) -> bool:
    """Apply a rule as often as it matches; returns whether it did."""
    done = False
    for _ in range(MAX_STEPS):
        if not _once(module, rule):
            break
        done = True
    return done


def _once(module: fx.GraphModule, rule: RewriteRule) -> bool:
    for node in list(module.graph.nodes):
        if not node.users and node.op != "output":
            continue
        if rule.fewer and not _would_shrink(module, rule, node):
            continue
        if rule.apply(node):
            module.graph.eliminate_dead_code()
            return True
    return False


def _would_shrink(module: fx.GraphModule, rule: RewriteRule, node: Node) -> bool:
    """Whether the rule removes operators here; parts with other users stay."""
    trial = copy_of(module)
    twin = list(trial.graph.nodes)[list(module.graph.nodes).index(node)]
    before = operators(trial.graph)
    if not rule.apply(twin):
        return False
    trial.graph.eliminate_dead_code()
    return operators(trial.graph) < before
