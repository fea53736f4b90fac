"""`[[rules]]` and `[metrics]` of a hardware.toml: what the counters of a chip's own profiler mean.

A rule concludes a signal from counters; an alias says that a counter is a canonical metric, so that
the built-in rules read it too. Whether a signal or a canonical metric exists is a question for the
retrieval data (`retrieval.diagnose.own_rules`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from kb.errors import InvalidPredicate
from kb.hardware.checks import TableReader, names_of
from kb.hardware.spec import CONFIDENCES, Confidence, MetricAlias, RuleSpec
from kb.predicates import compile_predicate

MAX_RULES = 200
MAX_ALIASES = 500
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SIGNAL = re.compile(r"[a-z][a-z0-9_]{0,63}")


def read_rules(root: TableReader) -> tuple[RuleSpec, ...]:
    """The rules in the order of the file; problems go to the reader."""
    rules: list[RuleSpec] = []
    rows = root.tables("rules")
    if len(rows) > MAX_RULES:
        root.add("rules", f"{len(rows)} entries", f"at most {MAX_RULES}")
    for row in rows[:MAX_RULES]:
        rule = _rule(row)
        if rule.id and any(rule.id == other.id for other in rules):
            row.add("id", f"{rule.id!r} is already a rule of this file", "give it an id of its own")
        rules.append(rule)
    return tuple(rules)


def _rule(row: TableReader) -> RuleSpec:
    row.only(names_of(RuleSpec))
    identity = row.text("id", required=True, limit=64)
    if identity and not _ID.fullmatch(identity):
        row.add("id", f"{identity!r} is no rule id", "lower case words with -: stalls-on-memory")
    signal = row.text("signal", required=True, limit=64)
    if signal and not _SIGNAL.fullmatch(signal):
        row.add("signal", f"{signal!r} is no signal id", "like latency_bound")
    return RuleSpec(
        id=identity,
        when=_when(row),
        signal=signal,
        title=row.text("title", required=True, limit=200),
        why=row.text("why", limit=1_000),
        confidence=cast(Confidence, row.choice("confidence", CONFIDENCES, "C")),
    )


def _when(row: TableReader) -> str:
    text = row.text("when", required=True, limit=1_000)
    if not text.strip():
        return text
    try:
        names = compile_predicate(text).names()
    except InvalidPredicate as problem:
        row.add("when", problem.message, problem.hint)
        return text
    if not names.parameters and not names.metrics:
        fix = "compare a counter, like my_stall_cycles / my_cycles > 0.4"
        row.add("when", "reads no counter and no metric", fix)
    return text


def read_aliases(root: TableReader) -> Mapping[str, MetricAlias]:
    """The canonical metrics of own counters, by the counter's name as the profiler reports it."""
    table = root.table("metrics")
    if len(table.raw) > MAX_ALIASES:
        root.add("metrics", f"{len(table.raw)} entries", f"at most {MAX_ALIASES}")
    aliases = {}
    for counter in table.raw:
        row = table.table(counter)
        row.only(names_of(MetricAlias))
        scale = row.raw.get("scale", 1.0)
        if (
            isinstance(scale, bool)
            or not isinstance(scale, int | float)
            or not 0 < scale < math.inf
        ):
            row.add("scale", f"{str(scale)[:20]} is no factor", "a positive number, like 100")
            scale = 1.0
        canonical = row.text("canonical", required=True, limit=100)
        aliases[str(counter)] = MetricAlias(canonical, float(scale))
    return MappingProxyType(aliases)
