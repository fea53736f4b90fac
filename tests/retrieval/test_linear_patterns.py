"""Patterns of signatures: refused constructs, literals of every match, and both engines."""

import re
import tomllib

import pytest

from retrieval.diagnose.linear_patterns import UnsafePattern, compile_linear
from retrieval.diagnose.signals import DATA
from retrieval.diagnose.signatures import load_signatures


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        (r"(\w+) failed \1", "back reference"),
        ("(?<!not )failed", "look-around"),
        ("fail++ed", "possessive"),
        ("(?(1)a|b)failed", "conditional"),
        (r"failed\Z", "write $"),
        ("(?i)failed", "ignores case already"),
        ("(?s-i:failed)", "ignores case already"),
        ("[failed", "missing ]"),
        ("failed" + ".{0,300}x" * 3, "smaller counts"),
    ],
)
def test_refusal_names_construct_and_its_replacement(pattern: str, advice: str) -> None:
    with pytest.raises(UnsafePattern, match=re.escape(advice)):
        compile_linear(pattern)


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("Segmentation fault|SIGSEGV", ("segmentation fault", "sigsegv")),
        (r"fatal error: .{1,200}not (?:found|there)", ("fatal error: ",)),
        (r"(?P<file>\w+)\.cu\(\d+\): error+ [x]y", ("): error",)),
        (r"\[NCC_[A-Z]{2}\] lines?: \x41bcde", ("] line",)),
        (r"(?:optional text)?re\Qquire.\Ed", ("require.d",)),
        ("(?:long text here|short){2} an", ("long text here", "short")),
        ("name{0,3} more{2}s{0}", (" more",)),
        ("(?-i:^Fatal error: )", ("fatal error: ",)),
    ],
)
def test_literals_of_every_match(pattern: str, literals: tuple[str, ...]) -> None:
    assert compile_linear(pattern).literals == literals


def test_every_built_in_pattern_has_literals() -> None:
    for signature in load_signatures():
        pattern = compile_linear(signature.pattern)
        assert pattern.search("x" * 50) is None
        assert min(map(len, pattern.literals)) >= 4


def test_every_pattern_compiles_without_re2() -> None:
    """A portable session runs with only torch installed; its patterns are compiled by `re`."""
    rows = tomllib.loads((DATA / "signatures.toml").read_text(encoding="utf-8"))["signatures"]
    patterns = [row[name] for row in rows for name in ("pattern", "frames") if name in row]
    assert len(patterns) > 400
    for pattern in patterns:
        re.compile(pattern)
        re.compile(pattern, re.IGNORECASE)
