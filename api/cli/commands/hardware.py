"""`kernlore hardware`: chips, families and vendors: descriptions, facts, checks, coverage."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from annotated_types import Ge, Le

from api.cli.command import ApiBase, AsJson, DataDir, Yes, command, operation_command
from api.cli.commands.jobs import UploadedFile, wait_for_jobs
from api.cli.output import Json, columns, confirm, note, pairs
from api.cli.target import CommandTarget, login, read_settings
from api.operations import hardware
from ingestion.model_calls import AT_ONCE, SECONDS
from kb.errors import Conflict, InvalidRequest
from kb.hardware.facts import SubjectKind, readable
from kb.plain import Doc, plain

app = typer.Typer(help="Hardware: descriptions, facts, coverage.")

HardwareId = Annotated[str, typer.Argument(help="Id, alias or name of a hardware.")]

operation_command(
    app,
    "list",
    hardware.list_hardware,
    help="List the registered chips, families and vendors.",
    pick="hardware",
    text=columns("hardware=id", "kind", "parent", "languages", "name"),
)


def _hardware_text(shown: Json) -> str:
    known = ("id", "name", "vendor", "kind", "aliases", "languages", "summary")
    chains = shown.get("toolchains") or {}
    return "\n".join(
        [
            pairs({key: shown.get(key) for key in known}),
            f"lineage     {' > '.join(shown.get('lineage') or ())}",
            f"toolchains  {', '.join(chains) or 'none'}",
            *(line for name, chain in chains.items() for line in _toolchain_lines(name, chain)),
            *(
                f"rule        {rule['id']}: {rule['signal']} where {rule['when']}"
                f" ({rule['confidence']})"
                for rule in shown.get("rules") or ()
            ),
            *(
                f"metric      {counter} is {alias['canonical']} (times {alias['scale']:g})"
                for counter, alias in (shown.get("metrics") or {}).items()
            ),
            "",
            _facts_text(shown["with_sources"]),
        ]
    )


def _toolchain_lines(language: str, chain: Json) -> Iterator[str]:
    """A toolchain, with what it needs of a kernel's entry, arguments and scalars."""
    if chain.get("builtin"):
        yield f"  {language}: built in, {chain['builtin']}"
        return
    stated = [f"timing {chain['timing']}"]
    stated += [f"{key} {chain[key]}" for key in ("entry", "suffix") if chain.get(key)]
    for key in ("interface", "sample"):
        if chain.get(key):
            stated.append(f"{key} of {len(chain[key])} characters")
    yield f"  {language}: {', '.join(stated)}"
    if chain.get("arguments"):
        yield f"    arguments {', '.join(f'{k} = {v}' for k, v in chain['arguments'].items())}"
    for name, scalar in (chain.get("scalars") or {}).items():
        yield f"    scalar {name} = {scalar['value']}{' (optional)' * scalar['optional']}"


@command(app, "show", text=_hardware_text)
def show_hardware(target: CommandTarget, hardware_id: HardwareId, as_json: AsJson = False) -> Json:
    """Show a chip, family or vendor: lineage, toolchains, facts."""
    shown = target.call(hardware.show_hardware, hardware_id)
    if as_json:
        return shown
    return {**shown, "with_sources": target.call(hardware.list_facts, hardware_id)}


NO_FACTS = (
    "a table with the columns key, value and unit gives facts under any name, and a description"
    " (`kernlore hardware new`, `add`) states them directly; `kernlore jobs show` lists the rows of"
    " a document that gave none"
)


def _facts_text(answer: Json) -> str:
    """A few lines for each fact: the value, its source, how it was derived."""
    left = answer.get("left") or ()
    unread = list(_unread_lines(answer))
    if not answer["facts"] and not left:
        return "\n".join(["no facts are proposed", *unread]) if unread else f"no facts; {NO_FACTS}"
    lines = [line for fact in answer["facts"] for line in _fact_lines(fact)]
    others = answer.get("other_kinds") or ()
    if others:
        lines += ["", "also stated for these keys:"]
        lines += [line for fact in others for line in _fact_lines(fact)]
    lines += _open_lines(answer)
    if left:
        lines += ["", f"left as they were: {len(left)}"]
        lines += [f"    {fact['id']}  {fact['key']}: {fact['reason']}" for fact in left]
        lines.append("to accept one: --accept FACT_ID; all: --accept-all --include-unclear")
    waiting = [fact for fact in answer["facts"] if fact["status"] == "proposed"]
    if waiting and not left:
        decide = f"kernlore hardware facts {answer['hardware']} --accept"
        lines += ["", f"to accept one: {decide} {waiting[0]['id']}; all: {decide}-all"]
    return "\n".join([*lines, *unread])


UNREAD_SHOWN = 20


def _unread_lines(answer: Json) -> Iterator[str]:
    """Rows of documents that gave no fact, and the command that makes one of the first."""
    rows = answer.get("not_read") or ()
    if not rows:
        return
    yield from ("", f"rows with a number that gave no fact: {len(rows)}")
    yield from (f"    {row['row']}  ({row['title']})" for row in rows[:UNREAD_SHOWN])
    if len(rows) > UNREAD_SHOWN:
        yield f"    and {len(rows) - UNREAD_SHOWN} more; --json lists all"
    first = rows[0]
    given = shlex.join([first["key"] or "KEY", first["text"] or "VALUE"])
    at = shlex.join(["--document", first["document_id"], "--row", first["row"]])
    yield f"to add a fact: kernlore hardware facts {answer['hardware']} --add {given} {at}"


def _fact_lines(fact: Json) -> Iterator[str]:
    status = "" if fact["status"] == "accepted" else f", {fact['status']}"
    of = f", of {fact['hardware_id']}" if fact.get("inherited") else ""
    value = f"{fact['key']} = {readable(fact['value'], fact['unit'])}"
    yield f"{value}  ({fact['kind']}{status}{of}; {fact['id']})"
    place = ", ".join(filter(None, (fact["title"], fact["publisher"], fact["locator"])))
    if place:
        read = f" (read {fact['date']})" if fact["date"] else ""
        link = f"  {fact['url']}" if fact["url"] else ""
        yield f"    {place}{read}{link}"
    subject, kind = fact["subject"], fact.get("subject_kind")
    if kind == "family":
        yield f"    about a family above {fact['hardware_id']}: {subject}"
    elif kind == "unclear" or (subject and kind is None):
        yield f"    not clearly about {fact['hardware_id']}: {subject or 'no chip is named'}"
    before = (fact.get("cell") or {}).get("read")
    if before:
        back = f"--withdraw {fact['id']}"
        yield f"    corrected by {fact['actor']}; read as {before['text']} ({back})"
    if fact["formula"]:
        yield f"    = {fact['formula']}"
    if fact["note"]:
        yield f"    {fact['note']}"


def _open_lines(answer: Json) -> Iterator[str]:
    """Open questions: outdated values, then keys whose sources disagree."""
    outdated = answer.get("outdated") or ()
    if outdated:
        yield ""
        yield "a newer version of the manual has other values; the accepted ones stay in force:"
    for entry in outdated:
        yield f"    {entry['text']}"
        for now in entry["now"]:
            yield f"        --accept {now['fact_id']} to take it over ({now['status']})"
    conflicts = answer.get("conflicts") or ()
    if conflicts:
        yield ""
        yield "sources disagree; reject the wrong ones:"
    for conflict in conflicts:
        of = f" ({conflict['subject']})" if conflict["subject"] else ""
        values = (f"{readable(v['value'], v['unit'])} ({v['source']})" for v in conflict["values"])
        yield f"    {conflict['key']}{of}: {'; '.join(values)}"


@command(app, "facts", text=_facts_text)
def facts(
    target: CommandTarget,
    hardware_id: HardwareId,
    proposed: Annotated[
        bool, Doc("Facts that were read from documents and wait for a decision.")
    ] = False,
    key: Annotated[str | None, Doc("Only this key, such as l2_size.")] = None,
    subject: Annotated[str | None, Doc("Only facts whose subject has this in its name.")] = None,
    subject_kind: Annotated[
        SubjectKind | None, Doc("Only facts about the chip itself, a family above it, or unclear.")
    ] = None,
    document: Annotated[
        str | None, Doc("Only facts of this document: its id, or part of its title.")
    ] = None,
    accept: Annotated[
        list[str] | None,
        Doc("Accept this fact (its id, or the key of the only one); repeat for more."),
    ] = None,
    reject: Annotated[list[str] | None, Doc("Reject this fact; repeat for more.")] = None,
    set_: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--set", metavar="FACT_ID VALUE", help="Set the fact FACT_ID to VALUE, and accept it."
        ),
    ] = None,
    add: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--add",
            metavar="KEY VALUE",
            help="Add a fact by hand; --document and --row name its place.",
        ),
    ] = None,
    row: Annotated[
        str, typer.Option(help="With --add, the place in the document, such as a row of it.")
    ] = "",
    withdraw: Annotated[
        list[str] | None, Doc("Take the correction of this fact (id) back; repeat for more.")
    ] = None,
    accept_all: Annotated[bool, Doc("Accept every proposed fact that the filters leave.")] = False,
    reject_all: Annotated[bool, Doc("Reject every proposed fact that the filters leave.")] = False,
    include_unclear: Annotated[
        bool, Doc("With --accept-all, also facts whose subject is not clear.")
    ] = False,
) -> Json:
    """List facts with their sources, or decide about them."""
    if hardware_id.startswith(FACT):  # the id of a fact in place of the chip
        shown = target.call(hardware.show_fact, hardware_id)
        if not (accept or reject or set_ or withdraw or accept_all or reject_all):
            return {"hardware": shown["hardware_id"], "facts": [shown]}
        hardware_id = str(shown["hardware_id"])
    if add is not None:
        own, text = add
        made = target.call(
            hardware.add_fact,
            hardware_id,
            key=own,
            text=text,
            document_id=document,
            locator=row,
            actor=login(),
        )
        return {"hardware": made["hardware_id"], "facts": [made]}
    where: dict[str, Any] = {
        "key": key,
        "subject": subject,
        "subject_kind": subject_kind,
        "document": document,
    }
    decisions: list[tuple[str, dict[str, Any]]] = [
        *((_id_of(target, hardware_id, f), {"status": "accepted"}) for f in accept or ()),
        *((_id_of(target, hardware_id, f), {"status": "rejected"}) for f in reject or ()),
        *([(set_[0], _value(set_[1]))] if set_ is not None else []),
        *((fact, {"withdraw": True}) for fact in withdraw or ()),
    ]
    if accept_all + reject_all + bool(decisions) > 1:
        raise InvalidRequest(
            "more than one decision",
            hint="Give either --accept-all, or --reject-all, or decisions about single facts.",
        )
    if include_unclear and not accept_all:
        raise InvalidRequest(
            "--include-unclear without --accept-all",
            hint="It extends --accept-all to unclear facts.",
        )
    if accept_all or reject_all:
        given: Any = {name: value for name, value in where.items() if value is not None}
        return target.call(
            hardware.decide_facts,
            hardware_id,
            status="accepted" if accept_all else "rejected",
            where=given,
            include_unclear=include_unclear,
            actor=login(),
        )
    if decisions:
        known = target.call(hardware.show_hardware, hardware_id)["id"]
        decided = [
            target.call(hardware.decide_fact, fact, **decision, actor=login())
            for fact, decision in decisions
        ]
        return {"hardware": known, "facts": decided}
    status: Any = "proposed" if proposed else "effective"
    return target.call(hardware.list_facts, hardware_id, status=status, **where)


FACT = "fact_"
UNDECIDED = 5  # exit code of a test that decided nothing, as of `kernlore judge`


def _id_of(target: CommandTarget, chip: str, given: str) -> str:
    """The id of a fact, which is given itself or as the key of the only proposed fact with it."""
    if given.startswith(FACT):
        return given
    found = target.call(hardware.list_facts, chip, status="proposed", key=given)["facts"]
    if len(found) != 1:
        raise InvalidRequest(
            f"{given!r} is no id of a fact, and {len(found)} proposed facts have that key",
            hint=f"`kernlore hardware facts {chip} --proposed` lists their ids.",
        )
    return str(found[0]["id"])


@command(app, text=lambda answer: _lexicon_text(answer))
def lexicon(
    target: CommandTarget,
    hardware_id: HardwareId,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TERM=CONCEPT", help="What TERM means; repeat for more."),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="TERM", help="TERM means no concept; repeatable.")
    ] = None,
    as_read: Annotated[
        list[str] | None, typer.Option(metavar="TERM", help="Take the decision about TERM back.")
    ] = None,
    as_json: AsJson = False,
) -> Json:
    """List or correct the terms of a chip's manuals."""
    decided: list[tuple[str, str | None]] = [(term, "") for term in remove or ()]
    decided += [(term, None) for term in as_read or ()]
    for given in set_ or ():
        term, _, concept = given.partition("=")
        if not concept:
            raise InvalidRequest(f"--set {given}", hint="Use --set TERM=CONCEPT.")
        decided.append((term, concept))
    for term, meant in decided:
        target.call(hardware.correct_term, hardware_id, term=term, concept=meant)
    return target.call(hardware.list_lexicon, hardware_id)


def _lexicon_text(lexicon: Json) -> str:
    decided = [
        f"decided     {term}: {concept or 'no concept'}"
        for term, concept in lexicon["decided"].items()
    ]
    return "\n".join(
        [columns("term", "concept", "how", "passages", "quote")(lexicon["terms"]), *decided]
    )


def _value(text: str) -> dict[str, Any]:
    """A number in the unit of the fact, or a text."""
    try:
        return {"number": float(text), "text": text}
    except ValueError:
        return {"text": text}


@command(app, text=lambda answer: "" if answer["file"] is not None else answer["text"].rstrip("\n"))
def new(
    hardware_id: Annotated[str, typer.Argument(help="Id of the new hardware.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: print it.")
    ] = None,
    force: Annotated[bool, Doc("Replace an existing file.")] = False,
) -> Json:
    """Write a commented hardware.toml to fill in."""
    from kb.hardware.schema import hardware_template

    text = hardware_template(hardware_id)
    if output is not None:
        if output.exists() and not force:
            raise Conflict(f"{output} exists", hint="Give another -o, or --force to replace it.")
        output.write_text(text, encoding="utf-8")
        note(f"wrote {output}; fill it in, then `kernlore hardware add {output}`")
    return {"id": hardware_id, "file": str(output) if output else None, "text": text}


@command(app, text=lambda added: f"{added.get('outcome', 'registered')} {added.get('id')}")
def add(
    target: CommandTarget, file: Annotated[Path, typer.Argument(help="A hardware.toml file.")]
) -> Json:
    """Register a hardware, or replace its description."""
    from kb.hardware.schema import checked_toml

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8: {error}", hint="Save it as UTF-8.") from error
    description: Any = checked_toml(text, str(file))  # its errors name the file
    return target.call(hardware.register_hardware, description)


@command(app, text=lambda removed: "\n".join(_removed_lines(removed)))
def remove(
    target: CommandTarget,
    hardware_id: HardwareId,
    with_documents: Annotated[bool, Doc("Also delete documents that are only about it.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> Json:
    """Remove a chip, family or vendor with its description and facts.

    Refused, with a hint, while other hardware has it as its parent, or documents, active skills,
    keys or a run use it. Runs and measurements stay. Built-in hardware cannot be removed.
    """
    known = target.call(hardware.show_hardware, hardware_id)["id"]
    if not yes and not as_json:
        too = " with the documents that are only about it" if with_documents else ""
        confirm(f"Remove {known}{too}?", "nothing was removed")
    return target.call(hardware.remove_hardware, known, with_documents=with_documents)


def _removed_lines(removed: Json) -> Iterator[str]:
    yield f"removed {removed['id']}"
    if removed["facts_removed"]:
        decided = removed["decided_facts_removed"]
        yield f"removed facts: {removed['facts_removed']}, {decided} of them decided by people"
    if removed["documents_removed"]:
        yield f"removed documents: {', '.join(removed['documents_removed'])}"
    if removed["documents_kept"]:
        yield f"documents about other chips too, which stay: {', '.join(removed['documents_kept'])}"
    if removed["runs_kept"]:
        yield f"runs on it, which stay: {removed['runs_kept']}"
    if removed.get("note"):
        yield str(removed["note"])


@command(
    app,
    text=columns("hardware=hardware_id_hint", "kind", "device=name", "driver", "detected by=how"),
)
def detect(data_dir: DataDir = None) -> Any:
    """List the devices of this machine as hardware."""
    from ingestion.builtin import builtin_hardware
    from kb.hardware.detection import detect_devices
    from kb.hardware.lineage import find

    settings = read_settings(data_dir)
    known = {spec.id: spec for spec in builtin_hardware(settings.knowledge_dir)}
    if settings.catalog is not None or (settings.data_dir / "catalog.sqlite").exists():
        from kb.catalog import open_catalog
        from kb.catalog.hardware import HardwareRegistry

        known |= HardwareRegistry(open_catalog(settings.data_dir, settings.catalog)).all()
    probed = detect_devices(lambda name: find(name, known))
    for remark in probed.notes:
        note(remark)
    return probed.devices


def _check_text(checked: Json) -> str:
    lines = [f"{checked['hardware']}: {'complete' if checked['ok'] else 'something is missing'}"]
    lines += [line for part in checked["parts"] for line in _part_lines(part)]
    for row in checked["languages"]:
        lines += ["", f"language {row['language']}"]
        for title in ("tools", "sample"):
            lines += [line for part in row[title] for line in _part_lines(part)]
        if row["counters"]:
            lines += ["counters of the sample's report:"]
            lines += [_counter_line(counter) for counter in row["counters"]]
        if row["prompt"]:
            lines += ["a first prompt holds:"]
            lines += [line for part in row["prompt"] for line in _part_lines(part)]
    return "\n".join(lines)


def _part_lines(part: Json) -> Iterator[str]:
    mark = "needed, " if part["needed"] and part["state"] != "present" else ""
    message = f": {part['message']}" if part["message"] else ""
    yield f"  {part['name']:17} {mark}{part['state']}{message}"
    if part["state"] != "present" and part["fix"]:
        yield f"  {'':17} -> {part['fix']}"


def _counter_line(counter: Json) -> str:
    signals = dict.fromkeys(f"{signal} ({rule})" for rule, signal in counter["leads_to"])
    metric = f" = {counter['metric']}" if counter["metric"] not in ("", counter["name"]) else ""
    return f"  {counter['name']}{metric} -> {', '.join(signals) or 'no signal'}"


@command(app, text=_check_text, failed=lambda checked: not checked["ok"])
def check(local: CommandTarget, hardware_id: HardwareId) -> Json:
    """Check a chip's tools, sample, counters and prompt. Exits 1 if something needed is missing."""
    from optimizer.evaluation.hardware_check import check_hardware

    checked = check_hardware(local.services, hardware_id)
    return {**plain(checked), "ok": checked.ok}


def _acceptance_text(result: Json) -> str:
    from pydantic import TypeAdapter

    from optimizer.evaluation.acceptance.page import acceptance_page
    from optimizer.evaluation.acceptance.records import Acceptance

    return acceptance_page(TypeAdapter(Acceptance).validate_python(result))


def _acceptance_failed(result: Json) -> int:
    marks = [language["mark"] for language in result["languages"]]
    if any(mark is not None and mark < result["fail_under"] for mark in marks):
        return 1
    return UNDECIDED if None in marks else 0


@command(app, text=_acceptance_text, failed=_acceptance_failed)
def accept(
    local: CommandTarget,
    hardware_id: HardwareId,
    language: Annotated[str, Doc("Only this language of the chip.")] = "",
    fail_under: Annotated[float, Doc("Exit with 1 if a mark is lower."), Ge(0), Le(100)] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the page to this file.")
    ] = None,
    models: Annotated[str, Doc("Let these models write kernels from the manuals alone.")] = "",
    attempts: Annotated[int, Doc("Kernels for each problem."), Ge(1), Le(32)] = 4,
    api_base: Annotated[
        str | None, Doc("Address of an OpenAI-compatible server of the models.")
    ] = None,
) -> Json:
    """Test a chip's manuals on its own toolchain. It exits with 5, and `mark` is null in the JSON,
    where nothing could be decided for a language."""
    from optimizer.evaluation.acceptance.accept import accept_manuals

    result = accept_manuals(local.services, hardware_id, language)
    if models:
        from optimizer.search.runs.acceptance import write_kernels
        from optimizer.search.synthesizers.llm.settings import ModelOptions

        asked = ModelOptions(models=models, api_base=api_base)
        result = write_kernels(local.services, result, asked, attempts, note)
    answer = {**plain(result), "fail_under": fail_under}
    if output is not None:
        output.write_text(_acceptance_text(plain(result)), encoding="utf-8")
        note(f"wrote {output}")
    return answer


def _probe_text(answer: Json) -> str:
    if answer.get("pack"):
        return f"wrote {answer['pack']}; run `python {answer['pack']} --out FOLDER` on the machine"
    from pydantic import TypeAdapter

    from optimizer.evaluation.acceptance.page import probe_page
    from optimizer.evaluation.acceptance.probes import ProbeReport

    return probe_page(TypeAdapter(ProbeReport).validate_python(answer))


@command(app, text=_probe_text)
def probe(
    local: CommandTarget,
    hardware_id: HardwareId,
    language: Annotated[str, Doc("Only probes in this language.")] = "",
    only: Annotated[list[str] | None, Doc("Only this probe; repeatable.")] = None,
    library: Annotated[Path | None, Doc("Folder of probes. Default: the built-in ones.")] = None,
    pack: Annotated[
        Path | None, Doc("Write a zip that runs the probes on another machine, and end.")
    ] = None,
    results: Annotated[
        Path | None, Doc("Store the probes.json that a pack wrote, and show it.")
    ] = None,
) -> Json:
    """Measure a chip and compare it with its facts."""
    from optimizer.evaluation.acceptance import probes

    base, names = local.services, only or ()
    if results is not None:
        return dict(plain(probes.import_results(base, hardware_id, results)))
    if pack is not None:
        from optimizer.search.runs.sessions import write_program

        files = dict(probes.pack_files(base, hardware_id, names, library))
        write_program(pack, "optimizer.evaluation.acceptance.probe_runs", files)
        return {"pack": str(pack)}
    report = probes.probe_hardware(
        base, hardware_id, language=language, only=names, library=library, say=note
    )
    return dict(plain(report))


# -- language models over a chip's manuals

Model = Annotated[str, typer.Option("--models", metavar="NAME", help="The model's litellm name.")]
Calls = Annotated[int, Doc("Most calls of the model."), Ge(1)]
AtOnce = Annotated[int, Doc("Calls at the same time."), Ge(1), Le(32)]
Usd = Annotated[float | None, Doc("Make no further call once so much was spent.")]
ModelSeconds = Annotated[float, Doc("Longest time of a call."), Ge(1)]


@command(app, text=lambda report: reading_text(report), failed=lambda r: bool(r["left"]))
def read(
    local: CommandTarget,
    hardware_id: HardwareId,
    models: Model,
    api_base: ApiBase = None,
    calls: Calls = hardware.READ_CALLS,
    at_once: AtOnce = AT_ONCE,
    usd: Usd = None,
    model_seconds: ModelSeconds = SECONDS,
    again: Annotated[bool, Doc("Also sections that a model has read before.")] = False,
) -> Json:
    """Have a language model read a chip's documents.

    Answers then rank by what each section is good for. The same command continues where an earlier
    one ended; it exits 1 if sections are left.
    """
    from api.section_models import limits_of, read_sections, section_model

    model = section_model(models, api_base, model_seconds)
    limits = limits_of(model, calls, at_once, usd)
    report = read_sections(local.services, hardware_id, model, limits, again, note)
    return dict(plain(report))


def reading_text(report: Json) -> str:
    """The report of a reading."""
    lines = [
        f"{report['sections']} sections of {report['hardware']}: {report['read']} read now by"
        f" {report['model']}, {report['known']} before, {report['short']} too short,"
        f" {report['left']} left",
        f"{report['lines']} lines kept; {report['empty']} sections answer nothing",
    ]
    lines += [f"  dropped, {why}: {count}" for why, count in report["dropped"].items()]
    return "\n".join([*lines, *_spent_lines(report["spent"], report)])


def _spent_lines(spent: Json, report: Json) -> Iterator[str]:
    usd = "price unknown" if spent["usd"] is None else f"{spent['usd']:.4f} USD"
    yield (
        f"{spent['calls']} calls, {spent['tokens_in']} tokens in, {spent['tokens_out']} out, {usd}"
    )
    if (tokens := report.get("tokens_per_thousand_pages")) is not None:
        dear = report["usd_per_thousand_pages"]
        price = "" if dear is None else f", {dear:.2f} USD"
        yield f"a thousand pages of 3,000 characters: {tokens:,.0f} tokens{price}"
    yield from (f"failed: {reason}" for reason in spent["failed"])
    if spent["stopped"]:
        yield f"stopped: {spent['stopped']}; the same command continues"


@command(app, text=lambda report: _prepared_text(report), failed=lambda r: bool(r["spent"]["left"]))
def prepare(
    local: CommandTarget,
    hardware_id: HardwareId,
    models: Model,
    api_base: ApiBase = None,
    signal: Annotated[list[str] | None, Doc("Only this signal; repeat for more.")] = None,
    calls: Calls = hardware.DRAFT_CALLS,
    at_once: AtOnce = AT_ONCE,
    usd: Usd = None,
    model_seconds: ModelSeconds = SECONDS,
    again: Annotated[bool, Doc("Also signals with a decided draft.")] = False,
) -> Json:
    """Have a language model draft sections about signals.

    They rest on the chip's own manuals. Sentences that their source does not support are dropped; a
    person accepts the rest.
    """
    from api.section_models import draft_sections, limits_of, section_model

    model = section_model(models, api_base, model_seconds)
    limits = limits_of(model, calls, at_once, usd)
    report = draft_sections(local.services, hardware_id, model, limits, signal or (), again, note)
    return dict(plain(report))


def _prepared_text(report: Json) -> str:
    rows = {
        "drafted": report["drafted"],
        "hardly anything left": report["empty"],
        "a section of the chip has its name": report["written"],
        "decided before": report["decided"],
        "the manuals do not treat it": report["without_material"],
    }
    lines = [f"{name}: {', '.join(signals)}" for name, signals in rows.items() if signals]
    lines.append(f"{report['kept']} sentences kept, {sum(report['dropped'].values())} dropped")
    lines += [f"  dropped, {example}" for example in report["examples"]]
    lines += _spent_lines(report["spent"], report)
    if report["drafted"]:
        lines.append(
            f"`kernlore hardware drafts {report['hardware']}` shows them; --accept ID,"
            " --accept-all, --reject ID"
        )
    return "\n".join(lines)


@command(app, text=lambda drafts: _drafts_text(drafts))
def drafts(
    target: CommandTarget,
    hardware_id: HardwareId,
    status: Annotated[
        str | None, Doc("Only with this status: proposed, accepted or rejected.")
    ] = None,
    accept: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Accept this draft; repeat for more.")
    ] = None,
    reject: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Reject this draft; repeat for more.")
    ] = None,
    accept_all: Annotated[bool, Doc("Accept all proposed drafts.")] = False,
    as_json: AsJson = False,
) -> Any:
    """List sections that a model drafted, or decide about them."""
    decisions: list[tuple[Any, list[str] | None]] = []
    decisions += [("rejected", reject)] if reject else []
    decisions += [("accepted", None)] if accept_all else []
    decisions += [("accepted", accept)] if accept else []
    for decision, ids in decisions:
        decided = target.call(
            hardware.decide_drafts, hardware_id, status=decision, ids=ids, actor=login()
        )
        if decided["job_id"] is not None:
            file = UploadedFile("drafts", decision, decided["document_id"], decided["job_id"])
            wait_for_jobs(target, [file], group=None, quiet=as_json)
    chosen: Any = status
    listed = target.call(hardware.list_drafts, hardware_id, status=chosen)
    for draft_id in listed["outdated"]:
        note(f"{draft_id}: a manual no longer has its quotes; reject it, or prepare --again")
    return listed["drafts"]


def _drafts_text(rows: Sequence[Json]) -> str:
    lines: list[str] = []
    for draft in rows:
        lines.append(f"{draft['id']}  {draft['status']}  {draft['title']}  (by {draft['model']})")
        for sentence in draft["sentences"]:
            source = f"{sentence['document_title']}, {' > '.join(sentence['path'][-2:])}"
            quote = " ".join(sentence["quote"].split())
            lines += [
                f"    {sentence['text']}",
                f'        {sentence["section_id"]} {source}: "{quote}"',
            ]
    return "\n".join(lines) or "No draft: `kernlore hardware prepare ID --models NAME` makes some."


def coverage_text(coverage: Json, *, signals: bool = False) -> str:
    """Known topics, and the most useful of those that are missing. With `signals`, also every
    signal, covered or not."""
    states = Counter(subject["state"] for subject in coverage["signals"])
    lines = [
        f"coverage of {coverage['hardware']}: {coverage['documents']} documents,"
        f" {coverage['passages']} passages, {len(coverage['facts_known'])} facts;"
        f" signals: {states['covered']} covered, {states['thin']} thin, {states['missing']} missing"
    ]
    if signals:
        lines.append(_subjects("signal", coverage["signals"]))
    known = [topic for topic in coverage["topics"] if topic["state"] != "missing"]
    if known:
        lines.append(_subjects("topic", known))
    unknown = len(coverage["topics"]) - len(known)
    if unknown:
        lines.append(f"{unknown} topics that nothing is known about")
    if coverage["missing_topics"]:
        lines.append("most useful to add:")
        lines += [f"  {row['topic']}: {row['upload']}" for row in coverage["missing_topics"]]
    for row in coverage.get("first_kernel") or ():
        count = f" ({row['count']})" if row["count"] else ""
        lines.append(
            f"first kernel in {row['language']}: {row['part']} {row['state']}{count}:"
            f" {row['message']}"
        )
    if coverage.get("names_without_card"):
        lines.append(f"used and nowhere defined: {', '.join(coverage['names_without_card'])}")
    for row in coverage.get("refused") or ():
        place = " > ".join(filter(None, (row["document"], row["section"])))
        lines.append(f"refused by the tools: {row['name']} ({place}; {row['seen']})")
    return "\n".join(lines)


def _subjects(name: str, subjects: Sequence[Json]) -> str:
    return columns(f"{name}=id", "state", "own", "inherited", "documents")(subjects)


operation_command(
    app,
    "coverage",
    hardware.show_coverage,
    help="Show the knowledge about a chip and its gaps.",
    parameters={"hardware_id": HardwareId},
    text=lambda coverage: coverage_text(coverage, signals=True),
)
