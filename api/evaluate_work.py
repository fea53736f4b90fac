"""`kernlore evaluate` with everything imported: evaluations are forked from a process that has
imported this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from api.cli.main import main
from retrieval.diagnose.rules import load_rules
from retrieval.diagnose.signals import load_signals

# Modules that the command imports when it runs.
_USED = (
    "api.cli.commands.problem",
    "api.services",
    "numpy.random",
    "optimizer.evaluation.evaluate",
    "sqlalchemy.dialects.sqlite",
)
for _name in _USED:
    import_module(_name)
load_signals()
load_rules()


def evaluate(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; the exit code."""
    return main(["evaluate", *arguments])
