"""Removal of a hardware: the uses that prevent it, the data removed with it and the data that
stays.

Facts about the chip alone are removed with it; its documents only on request. Measurements stay,
and so do skills and documents that are about other chips too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from kb.catalog.hardware import HardwareUse, remove_hardware_rows, use_of_hardware
from kb.catalog.knowledge.documents import erase_deleted
from kb.errors import Conflict, StoreAway
from kb.hardware.spec import is_shipped
from kb.plain import Doc
from retrieval.documents import delete_document
from retrieval.knowledge_base import KnowledgeBase

NAMED = 5  # uses listed in the message of a conflict


@dataclass(frozen=True)
class RemovedHardware:
    """Data removed with a hardware, and data that stays."""

    id: str
    documents_removed: tuple[str, ...]
    documents_kept: Annotated[tuple[str, ...], Doc("They are about other hardware too.")]
    facts_removed: int
    decided_facts_removed: Annotated[int, Doc("Of those, accepted or entered by a person.")]
    runs_kept: int
    removed: bool
    note: str | None = None


def remove_hardware(
    base: KnowledgeBase,
    hardware_id: str,
    with_documents: Annotated[bool, Doc("Also the documents that are about it alone.")] = False,
) -> RemovedHardware:
    """Removes its description and facts; measurements on it stay. 409 with the required steps while
    it is in use, and for built-in hardware."""
    registry = base.registry
    hardware_id = registry.resolve(hardware_id)
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
    deleted = [delete_document(base, document_id) for document_id in use.documents]
    with base.catalog.write() as connection:
        now = use_of_hardware(connection, hardware_id)
        _check(hardware_id, now, False)  # checks for uses added in the meantime
        removed = remove_hardware_rows(connection, hardware_id, now.shared)
    base.snapshots.publish()
    note = None
    try:
        erase_deleted(base.catalog, base.blobs)
    except StoreAway as error:
        note = f"Stored files are removed later: {error.message}."
    return RemovedHardware(
        id=hardware_id,
        documents_removed=tuple(use.documents),
        documents_kept=tuple(now.shared),
        facts_removed=removed.facts + sum(d.facts_removed for d in deleted),
        decided_facts_removed=removed.decided + sum(d.accepted_facts_removed for d in deleted),
        runs_kept=removed.runs,
        removed=True,
        note=note,
    )


def _check(hardware_id: str, use: HardwareUse, with_documents: bool) -> None:
    """Raise Conflict for the first use of the hardware."""
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
