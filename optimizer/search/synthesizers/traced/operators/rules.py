"""The closed set of operators, by name: modules add theirs with `rule`."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.search.synthesizers.traced.lowering import Rule

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """The decorated function lowers the operators with these names."""

    def register(function: Rule) -> Rule:
        RULES.update({name: function for name in names})
        return function

    return register
