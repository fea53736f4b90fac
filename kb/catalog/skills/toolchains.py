"""Which toolchain is in use for which hardware, as it was last seen here.

A toolchain is named as the harness does: its name, then its versions (`cpp g++ 13.2.0`). Skills
carry that of their newest evidence; where the two differ, the evidence speaks of another compiler.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from kb.catalog import meta
from kb.errors import InvalidRequest

KEY = "toolchains"


def toolchain_name(toolchain: str) -> str:
    """`triton-nvidia` of `triton-nvidia triton 3.4.0, torch 2.8.0`."""
    return toolchain.split(" ", 1)[0]


def present_toolchains(connection: Connection) -> Mapping[str, Mapping[str, str]]:
    """hardware -> name -> toolchain."""
    found: Mapping[str, Mapping[str, str]] = meta.get(connection, KEY) or {}
    return found


def note_toolchain(connection: Connection, hardware: str, toolchain: str) -> str | None:
    """This is in use now; returns what was before, None where nothing was known."""
    name = toolchain_name(toolchain)
    if not name or not hardware:
        raise InvalidRequest(
            f"no toolchain: {toolchain!r} on {hardware!r}", hint="Give its name and versions."
        )
    known = {place: dict(chains) for place, chains in present_toolchains(connection).items()}
    before = known.setdefault(hardware, {}).get(name)
    if before != toolchain:
        known[hardware][name] = toolchain
        meta.put(connection, KEY, known)
        meta.bump_revision(connection)
    return before
