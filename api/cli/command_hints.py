"""Hints of errors in the words of commands: the rest of the product says which route lists what."""

from __future__ import annotations

import re

_PART = r"[^\s/;,.]+"
# The first that fits a place is taken, so the longer paths stand first.
_ROUTES = tuple(
    (re.compile(pattern), command)
    for pattern, command in (
        (rf"GET /skills/{_PART}/export gives", "`kernlore skills export` gives"),
        (r"GET /skills\b", "`kernlore skills list`"),
        (r"GET /signals\b", "`kernlore signals`"),
        (r"POST /hardware\b", "`kernlore hardware add`"),
        (rf"GET /hardware/({_PART})/facts(?:\?status=all)?", r"`kernlore hardware facts \1`"),
        (rf"GET /hardware/({_PART})/samples", r"`kernlore knowledge samples --hardware \1`"),
        (rf"GET /hardware/({_PART})/symbols", r"`kernlore knowledge symbols --hardware \1`"),
        (r"GET /hardware\b", "`kernlore hardware list`"),
        (rf"GET /documents/({_PART})/passages", r"`kernlore documents passages \1`"),
        (rf"GET /documents/({_PART})/sections", r"`kernlore documents show \1`"),
        (rf"GET /documents/({_PART})(?= )", r"`kernlore documents show \1`"),
        (r"GET /documents\b", "`kernlore documents list`"),
        (r"GET /trajectories and (`kernlore trajectories list`) show", r"\1 shows"),
        (rf"GET /runs/({_PART})/flagged", r"`kernlore runs flagged \1`"),
        (r"GET /docs shows what each request takes", "--help shows what the command takes"),
        (r"\(`force`\)", "(`--force`)"),
    )
)
_IDS = {"{id}": "ID", "{document_id}": "ID", "{hardware}": "ID"}


def in_commands(text: str) -> str:
    """The text with commands in place of the routes that they stand for."""
    for name, word in _IDS.items():
        text = text.replace(name, word)
    for route, command in _ROUTES:
        text = route.sub(command, text)
    return text
