"""Tools that add a chip: its description, its manuals as text, and decisions about the facts that
were read from them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from api.mcp import results
from api.mcp.routes import Routes
from api.mcp.tool import READS, RECORDS, REPEATABLE, WAIT, Arguments, Wait, until
from ingestion.hardware import FactFilter
from kb.errors import InvalidRequest
from kb.hardware.facts import readable
from kb.plain import plain
from kb.scope import Category

MOST_TEXT = 8_000_000  # characters of a document
LEFT = "Compare those in `left` with their sources; `include_unclear` decides about them too."
GAPS = 12  # signals and facts that a list of gaps names
Id = Annotated[str, Field(min_length=1, max_length=200)]


class HardwareArguments(Arguments):
    id: Id | None = Field(None, description="Lower case letters, digits and hyphens.")
    name: Id | None = Field(None, description="Its full name.")
    parent: Id | None = Field(None, description="The id of its family, whose knowledge it shares.")
    languages: list[Id] | None = Field(None, description="Languages of its kernels.")
    toml: str | None = Field(
        None, description="In place of the other fields: the text of a hardware.toml."
    )


class DocumentArguments(Arguments):
    hardware: Id = Field(description="Id, name or alias of the chip that the document is about.")
    name: Id = Field(
        description="Its file name with folders, such as guide/memory.md. The extension names the"
        " format of `text`: md, rst, txt, html, tex, adoc. The same name replaces a version."
    )
    text: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)] = Field(
        description="The whole text of the document."
    )
    languages: list[Id] | None = Field(None, description="Languages that it is about.")
    category: Category = Field(
        "hardware", description="hardware: a manual; guidance: advice; constraint: rules."
    )
    wait_seconds: Wait = WAIT


class FactsArguments(Arguments):
    hardware: Id = Field(description="Id, name or alias of the chip.")
    status: FactFilter = Field(
        "proposed",
        description="proposed: read from documents, waiting for a decision. effective: in force.",
    )
    key: Id | None = Field(None, description="Only this key, such as l2_size.")


class DecisionArguments(Arguments):
    hardware: Id = Field(description="Id, name or alias of the chip.")
    status: Literal["accepted", "rejected"]
    ids: list[Id] | None = Field(None, description="Ids of facts of this chip.")
    all_proposed: bool = Field(
        False, description="In place of `ids`: all that wait, but those that contradict each other."
    )
    include_unclear: bool = Field(
        False, description="Also those that may be about another chip or variant."
    )


class CoverageArguments(Arguments):
    hardware: Id = Field(description="Id, name or alias of the chip.")


async def register_hardware(routes: Routes, given: HardwareArguments) -> results.RegisteredChip:
    """Add a chip that `list_signals_and_hardware` does not list, or change its description. `id`
    alone will do; its numbers come from its manuals by `upload_document`."""
    answer = await routes.call("register_hardware", description=_description(given))
    return results.RegisteredChip.model_validate(answer)


def _description(given: HardwareArguments) -> Mapping[str, Any]:
    if (given.id is None) == (given.toml is None):
        raise InvalidRequest(
            "give `id` or `toml`, one of them", hint="`id` alone registers a chip."
        )
    if given.toml is None:
        return given.model_dump(exclude_none=True)
    try:
        return tomllib.loads(given.toml)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"`toml` is no TOML: {error}", hint="Correct that place, or give `id` instead."
        ) from error


async def upload_document(routes: Routes, given: DocumentArguments) -> results.UploadedDocument:
    """Add a manual of a chip as text, and wait until it is read. The answer counts passages and
    lists the facts that wait for a decision. For PDF and folders use `kernlore ingest`."""
    sent = await routes.call(
        "upload",
        file=(given.name, given.text.encode()),
        hardware=[given.hardware],
        category=given.category,
        languages=given.languages,
    )
    job: dict[str, Any] = {"id": None, "state": "ready", "result": {}, "error": None}
    if sent["job_id"] is not None:

        async def state() -> Any:
            return await routes.call("show_job", job_id=sent["job_id"])

        async def ended() -> Any:
            shown = await state()
            return None if shown["state"] in ("queued", "running") else shown

        job = await until(ended, given.wait_seconds) or await state()
    stated = await routes.call(
        "facts_of", hardware_id=given.hardware, status="proposed", document=sent["document_id"]
    )
    read = job["result"] or {}
    return results.UploadedDocument(
        document_id=sent["document_id"],
        outcome=sent["outcome"],
        job_id=job["id"],
        state=job["state"],
        error=job["error"],
        passages=read.get("passages", 0),
        symbols=read.get("symbols", 0),
        samples=read.get("samples", 0),
        facts_waiting=[_fact(row) for row in stated["facts"]],
        not_read=[
            note for kind in ("remarks", "rows_not_read", "warnings") for note in read.get(kind, ())
        ],
    )


async def list_facts(routes: Routes, given: FactsArguments) -> results.ListedFacts:
    """List numbers of a chip with their sources: those that wait for a decision, or those in
    force. Sources that disagree are in `conflicts`."""
    answer = await routes.call(
        "facts_of", hardware_id=given.hardware, status=given.status, key=given.key
    )
    return results.ListedFacts(
        hardware=answer["hardware"],
        facts=[_fact(row) for row in answer["facts"]],
        conflicts=answer["conflicts"],
        not_read=[f"{row['row']} ({row['title']})" for row in answer["not_read"]],
    )


async def decide_facts(routes: Routes, given: DecisionArguments) -> results.FactDecisions:
    """Accept or reject facts that were read from manuals. Accepted ones are used in every answer
    about the chip, so compare them with their sources, and ask the user where you are not sure."""
    if (given.ids is None) == (not given.all_proposed):
        raise InvalidRequest(
            "give `ids` or `all_proposed`, one of them", hint="`list_facts` has the ids."
        )
    answer = await routes.call(
        "decide_facts",
        hardware_id=given.hardware,
        status=given.status,
        ids=given.ids,
        where={} if given.all_proposed else None,
        include_unclear=given.include_unclear,
        actor="agent",
    )
    return results.FactDecisions(
        hardware=answer["hardware"],
        decided=[_fact(row) for row in answer["facts"]],
        left=answer["left"],
        hint=LEFT if answer["left"] else "" if answer["facts"] else "No fact waits for a decision.",
    )


def _fact(row: Mapping[str, Any]) -> results.StatedFact:
    page = plain(row["page_label"]) or (
        None if row["page_index"] is None else str(row["page_index"] + 1)
    )
    place = [row["title"], row["locator"], f"page {page}" if page else ""]
    return results.StatedFact.model_validate(
        {
            **row,
            "source": ", ".join(filter(None, place)),
            "value": readable(row["value"], row["unit"]),
        }
    )


async def show_coverage(routes: Routes, given: CoverageArguments) -> results.Gaps:
    """Show what the manuals of a chip do not cover: signals without a passage, topics to upload
    next, missing facts, and missing parts for a first kernel."""
    answer = await routes.call("coverage", hardware_id=given.hardware)
    missing = [row for row in answer["first_kernel"] if row["state"] == "missing"]
    return results.Gaps.model_validate(
        {
            **answer,
            "signals_missing": [s["id"] for s in answer["signals"] if s["state"] == "missing"],
            "signals_covered": sum(s["state"] != "missing" for s in answer["signals"]),
            "upload_next": answer["missing_topics"][:GAPS],
            "facts_missing": [fact["key"] for fact in answer["facts_missing"]],
            "first_kernel_lacks": [f"{row['language']}: {row['message']}" for row in missing],
        }
    )


TOOLS = (
    (register_hardware, HardwareArguments, results.RegisteredChip, REPEATABLE, "Add a chip"),
    (upload_document, DocumentArguments, results.UploadedDocument, REPEATABLE, "Add a manual"),
    (list_facts, FactsArguments, results.ListedFacts, READS, "List facts"),
    (decide_facts, DecisionArguments, results.FactDecisions, RECORDS, "Decide facts"),
    (show_coverage, CoverageArguments, results.Gaps, READS, "Show gaps"),
)
