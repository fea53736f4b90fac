"""Tools that read: knowledge for a task, manuals, names; and reports of outcomes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema, create_model

from api.mcp import results
from api.mcp.routes import Routes
from api.mcp.tool import READS, RECORDS, Arguments
from kb.plain import plain
from kb.scope import Category
from retrieval.diagnose.signals import load_signals
from retrieval.request import TASKS
from retrieval.request_body import RetrieveBody

# Fields of a request that agents may give; the others serve optimizers and curators. The longer
# descriptions are said in fewer words here, because every session of an agent loads them.
TAKEN = {
    **dict.fromkeys(("task", "signal", "signals", "log", "metrics"), ""),
    "profile": "Output of a profiler, unchanged, as text or JSON.",
    **dict.fromkeys(("query", "draft", "hardware", "op", "language", "dtype"), ""),
    "problem": "Sizes of the problem, like product_rows or flops.",
    **dict.fromkeys(("categories", "k", "max_tokens", "run_id", "exclude"), ""),
    "reader": "`strong`: only what surprises a model that knows common chips well.",
    "versions": "Your tools, like triton 3.6, or the text of pip freeze: marks what other versions"
    " need, leaves out what fails with yours.",
}
PAGE = 40  # passages of a section in one answer
Text = Annotated[str, Field(min_length=1, max_length=20_000)]


def _words(ids: tuple[str, ...]) -> Any:
    """A string whose schema lists the words; the route checks it and names the nearest."""
    return Annotated[str, WithJsonSchema({"type": "string", "enum": list(ids)})]


def _taken() -> dict[str, Any]:
    """Type and description of each field, from the body of /retrieve."""
    narrowed = {
        "signal": _words(tuple(signal.id for signal in load_signals())) | None,
        "task": _words(TASKS) | None,
    }
    fields = RetrieveBody.model_fields
    return {
        name: (narrowed.get(name, fields[name].annotation), _described(name, fields[name]))
        for name in TAKEN
    }


def _described(name: str, field: Any) -> Any:
    text = (TAKEN[name] or field.description).replace("GET /signals", "list_signals_and_hardware")
    return Field(None, description=text.replace("GET /hardware", "list_signals_and_hardware"))


if TYPE_CHECKING:

    class RetrieveArguments(Arguments):
        """The fields of a request that make sense to an agent."""

else:
    RetrieveArguments = create_model("RetrieveArguments", __base__=Arguments, **_taken())


class SearchArguments(Arguments):
    query: Text = Field(description="A question, or words of the manual.")
    hardware: str | None = Field(None, description="Only knowledge that applies to this chip.")
    language: str | None = Field(None, description="Only knowledge that applies to this language.")
    category: Category | None = Field(None, description="Only documents of this category.")
    k: Annotated[int, Field(ge=1, le=50)] = Field(8, description="Number of excerpts.")


class SectionArguments(Arguments):
    excerpt: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        description="The id of an excerpt (psg_...)."
    )
    offset: Annotated[int, Field(ge=0)] = Field(0, description="`next_offset` of the answer before")


class SymbolArguments(Arguments):
    name: Annotated[str, Field(min_length=1, max_length=400)] = Field(
        description="An instruction, intrinsic, function, directive or error code; or words about"
        " it."
    )
    hardware: str = Field(description="Id, name or alias of the chip.")
    language: str | None = Field(None, description="Without names of other languages.")
    limit: Annotated[int, Field(ge=1, le=50)] = Field(5, description="Most cards.")


class NoArguments(Arguments):
    pass


class OutcomeArguments(Arguments):
    retrieval_id: Annotated[str, Field(min_length=1, max_length=200)]
    used: list[str] = Field(
        default_factory=list, description="Ids of the excerpts, moves and skills acted on."
    )
    correct: bool | None = Field(None, description="Whether the kernel was correct.")
    speedup: float | None = Field(None, description="Of the kernel; 2.0 is twice as fast.")
    baseline_speedup: float | None = Field(
        None, description="Of the kernel before the change, over the same reference."
    )
    note: Annotated[str, Field(max_length=4000)] | None = None


def _given(arguments: BaseModel) -> dict[str, Any]:
    fields = {name: getattr(arguments, name) for name in type(arguments).model_fields}
    return {name: value for name, value in fields.items() if value is not None}


async def retrieve_context(routes: Routes, given: RetrieveArguments) -> results.Retrieved:
    """Get knowledge for your next step with a kernel on a chip: `context` is ready to read, with
    citations of the chip's manuals, rules, moves and skills. Give the raw log, a profile, metrics,
    a signal, a question, your draft, or several; `task` write with `hardware` alone prepares a
    first kernel. Name the hardware: nothing about another chip is returned. Report what came of it
    by `report_outcome`."""
    answer = await routes.call("retrieve", request=_given(given))
    return results.Retrieved.model_validate(answer)


async def search_manual(routes: Routes, given: SearchArguments) -> results.Searched:
    """Search the manuals and guides for passages about a question. Use `retrieve_context` for a
    failing or slow kernel."""
    body = _given(given) | {"task": "ask", "fields": ["excerpts", "hints"]}
    if "category" in body:
        body["categories"] = [body.pop("category")]
    answer = await routes.call("retrieve", request=body)
    return results.Searched.model_validate(answer)


async def get_section(routes: Routes, given: SectionArguments) -> results.SectionText:
    """Read the whole section of a manual that an excerpt comes from."""
    return await section_text(routes, given.excerpt, given.offset)


async def lookup_symbol(routes: Routes, given: SymbolArguments) -> results.SymbolCards:
    """Look up a name of a chip's language in the chip's own manuals: signature, operands,
    limits, an example. Do so before you write an instruction or intrinsic that you are not sure
    of."""
    answer = await routes.call(
        "list_symbols",
        hardware_id=given.hardware,
        q=given.name,
        limit=given.limit,
        language=given.language,
    )
    known = answer["symbols"] or given.name in answer["nearest"]
    found = "" if known else await _occurrence(routes, given)
    return results.SymbolCards.model_validate({**answer, "hint": found or _way_on(given, answer)})


async def _occurrence(routes: Routes, given: SymbolArguments) -> str:
    """Where the chip's manuals use a name that has no card; empty if no found passage has it."""
    request = {"query": given.name, "hardware": given.hardware, "task": "ask", "k": 8}
    answer = await routes.call("retrieve", request={**request, "fields": ["excerpts"]})
    name = re.compile(rf"(?<![\w.]){re.escape(given.name)}(?![\w.]*\w)")
    for excerpt in answer["excerpts"]:
        if name.search(excerpt["text"]):
            section, title = excerpt["section"], excerpt["document"]["title"]
            return (
                f"It has no card; it occurs in section {section} of {title}: get_section with"
                f" {excerpt['id']} reads it."
            )
    return ""


def _way_on(given: SymbolArguments, answer: Any) -> str:
    """What to do where a name has no card."""
    if answer["symbols"]:
        return ""
    limited = f" in {given.language}" if given.language else ""
    if answer["nearest"]:
        return (
            f"No name like it{limited}. Look up one of `nearest`, without `language`; or ask"
            " search_manual in words."
        )
    return (
        f"No manual of {given.hardware} defines names like it{limited}. Ask search_manual in words;"
        " show_coverage says which manuals lack, upload_document adds one."
    )


async def list_signals_and_hardware(routes: Routes, _: NoArguments) -> results.Known:
    """List the ids that `signal` and `hardware` of the other tools take."""
    signals, hardware = await routes.call("list_signals"), await routes.call("list_hardware")
    return results.Known.model_validate({**signals, **hardware})


async def report_outcome(routes: Routes, given: OutcomeArguments) -> results.Outcome:
    """Report whether a retrieved answer led to a correct and faster kernel. Later answers are
    ranked by it."""
    answer = await routes.call("report_outcome", **_given(given))
    return results.Outcome.model_validate(answer)


TOOLS = (
    (retrieve_context, RetrieveArguments, results.Retrieved, READS, "Get knowledge"),
    (search_manual, SearchArguments, results.Searched, READS, "Search the manuals"),
    (get_section, SectionArguments, results.SectionText, READS, "Read a section"),
    (lookup_symbol, SymbolArguments, results.SymbolCards, READS, "Look up a name"),
    (list_signals_and_hardware, NoArguments, results.Known, READS, "List ids"),
    (report_outcome, OutcomeArguments, results.Outcome, RECORDS, "Report outcome"),
)


async def section_text(routes: Routes, passage_id: str, offset: int = 0) -> results.SectionText:
    """The section of a passage as one text. Raises NotFound."""
    passage = await routes.call("show_passage", passage_id=passage_id)
    document, section = passage["document"], passage["section"]
    page = await section_page(routes, document["id"], section["id"], offset)
    rows = page["passages"]
    after = offset + len(rows)
    return results.SectionText(
        document=results.CitedDocument.model_validate(document),
        section_id=section["id"],
        path=section["path"],
        hardware=passage["hardware"],
        page=plain(rows[0]["page"]) if rows else None,
        text=passages_text(rows),
        passages=page["total"],
        next_offset=after if after < page["total"] else None,
    )


async def section_page(routes: Routes, document_id: str, section_id: str, offset: int) -> Any:
    """The passages of a section from `offset` on, at most `PAGE`."""
    return await routes.call(
        "list_passages", document_id=document_id, section=section_id, offset=offset, limit=PAGE
    )


def passages_text(rows: list[dict[str, Any]]) -> str:
    """The text of passages; pieces of a table begin with the header rows of the table."""
    parts = (part for row in rows for part in (row["lead"], row["text"]) if part)
    return "\n\n".join(parts)
