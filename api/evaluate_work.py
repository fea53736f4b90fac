"""`kernlore evaluate` where everything that it needs is imported: for processes that are forked
from one that has imported this module."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from api.cli.main import main
from retrieval.diagnose.rules import load_rules
from retrieval.diagnose.signals import load_signals

# What the command imports when it is used.
_USED = (
    "api.cli.backends.local",
    "api.cli.commands.evaluate",
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
    """The command with these arguments; the exit code."""
    return main(["evaluate", *arguments])
