"""Removing a chip: what still uses it, what goes with it and what stays.

What is known about the chip alone goes with it, its documents only where that is asked for. What
was measured on it stays, and so do skills and documents that are about other chips too.
"""

from __future__ import annotations

from typing import Any

from kb.catalog.hardware import HardwareUse, remove_hardware_rows, use_of_hardware
from kb.catalog.knowledge.documents import erase_deleted
from kb.errors import Conflict, StoreAway
from kb.hardware.spec import is_shipped
from retrieval.documents import delete_document
from retrieval.knowledge_base import KnowledgeBase

Json = dict[str, Any]
NAMED = 5  # of what is in the way, in one sentence


def remove_hardware(base: KnowledgeBase, name: str, *, with_documents: bool = False) -> Json:
    """Remove a chip, family or vendor with its description and facts; `with_documents`, also the
    documents that are about it alone. Raises UnknownHardware, and Conflict, which says what to do
    first, for one that is built in or in use.
    """
    registry = base.registry
    hardware_id = registry.resolve(name)
    registry.check_removal(hardware_id)
    if is_shipped(hardware_id, base.settings.knowledge_dir):
        raise Conflict(
            f"{hardware_id} is built in: each start would register it again",
            hint="To do without it, copy the folder of the built-in knowledge, take its folder"
            " out, set KERNLORE_KNOWLEDGE_DIR, and remove it then.",
        )
    with base.catalog.read() as connection:
        use = use_of_hardware(connection, hardware_id)
    _check(hardware_id, use, with_documents)
    gone = [delete_document(base, d, access_scope=base.access) for d in use.documents]
    with base.catalog.write() as connection:
        now = use_of_hardware(connection, hardware_id)
        _check(hardware_id, now, False)  # what came meanwhile
        removed = remove_hardware_rows(connection, hardware_id, now.shared)
    answer: Json = {
        "id": hardware_id,
        "removed": True,
        "documents_removed": list(use.documents),
        "documents_kept": list(now.shared),
        "facts_removed": removed.facts + sum(d["facts_removed"] for d in gone),
        "decided_facts_removed": removed.decided + sum(d["accepted_facts_removed"] for d in gone),
        "runs_kept": removed.runs,
    }
    try:
        erase_deleted(base.catalog, base.blobs)
    except StoreAway as error:
        answer["note"] = f"Stored files are removed later: {error.message}."
    return answer


def _check(hardware_id: str, use: HardwareUse, with_documents: bool) -> None:
    """Raise Conflict for the first thing that still uses it."""
    for ids, what, hint in (
        (
            use.children,
            "is the parent of {}",
            "Remove these first, or register them with another parent.",
        ),
        (use.runs, "is searched on by {}", "Let them end, or `kernlore runs cancel {first}`."),
        (use.reading, "has documents that are being read: {}", "Wait for their jobs to end."),
        (
            use.keys,
            "is what keys are restricted to: {}",
            "Revoke them first: `kernlore keys revoke {first}`.",
        ),
        (
            use.skills,
            "is the only hardware of skills in use: {}",
            "Retire them first: `kernlore skills retire {first} --reason TEXT`.",
        ),
        (
            () if with_documents else use.documents,
            "has documents that are about it alone: {}",
            "Delete them first (`kernlore documents delete {first}`), or with it: the switch"
            " --with-documents, over HTTP `?with_documents=true`.",
        ),
    ):
        if ids:
            more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
            raise Conflict(
                f"{hardware_id} {what.format(', '.join(ids[:NAMED]) + more)}",
                hint=hint.format(first=ids[0]),
                details={"in_the_way": list(ids)},
            )
