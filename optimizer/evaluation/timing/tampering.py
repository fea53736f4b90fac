"""What a runner itself saw its candidate do, however restless the machine was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from optimizer.evaluation.records import Flag
from optimizer.evaluation.timed_block import Block


def tampering(candidate: Sequence[Block], on: Callable[..., bool]) -> Iterator[Flag]:
    """A finding for each kind. `on` returns whether the defences of some rows are all on."""
    if on(4) and any(block.patched for block in candidate):
        yield Flag(4, "reject", "timers or comparison functions of torch or time were replaced")
    if on(50) and any(block.diverted for block in candidate):
        yield Flag(50, "reject", "functions of a library that tell times were changed")
    if on(46) and any(block.moded for block in candidate):
        yield Flag(46, "reject", "a mode of torch's dispatcher was still on after its calls")
    if on(2) and any(block.threads[1] > block.threads[0] for block in candidate):
        yield Flag(2, "reject", "Python threads were started by timed calls and are still alive")
