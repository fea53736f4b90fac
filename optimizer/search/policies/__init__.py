"""Which node is changed next. A policy is a function of the tree and a seeded random source, so the
same evaluations and the same seed give the same tree."""

from __future__ import annotations

from collections.abc import Mapping

from optimizer.search.goal import PolicyName
from optimizer.search.policies.base import Policy
from optimizer.search.policies.best_first import BestFirst
from optimizer.search.policies.evolutionary import Evolutionary
from optimizer.search.policies.mcts import TreeSearch

POLICY_OF: Mapping[PolicyName, type[Policy]] = {
    "best-first": BestFirst,
    "mcts": TreeSearch,
    "evolutionary": Evolutionary,
}

__all__ = ["POLICY_OF", "BestFirst", "Evolutionary", "Policy", "TreeSearch"]
