"""`kernlore hardware`: the registry of chips, their facts, what is installed, what is covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.backends import actor, open_target, read_settings
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, confirm, note, pairs, show, table
from kb.errors import Conflict, InvalidRequest
from kb.hardware.facts import SubjectKind, readable

app = typer.Typer(help="Hardware: descriptions, facts, coverage.")

HardwareId = Annotated[str, typer.Argument(help="Id, alias or name of a hardware.")]


@app.command("list")
def list_(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """List the registered chips, families and vendors."""
    with open_target(data_dir, url) as target:
        specs = target.hardware()
    show(
        specs,
        as_json,
        lambda rows: table(
            ("hardware", "kind", "parent", "languages", "name"),
            [
                (row["id"], row.get("kind"), row.get("parent"), row["languages"], row.get("name"))
                for row in rows
            ],
        ),
    )


@app.command("show")
def show_(
    hardware_id: HardwareId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show a chip, family or vendor: lineage, toolchains, facts."""
    with open_target(data_dir, url) as target:
        spec = target.hardware_one(hardware_id)
        facts = {} if as_json else target.facts(hardware_id, status="effective", where={})
    show(spec, as_json, lambda hardware: _hardware_text(hardware, facts))


def _hardware_text(hardware: Json, facts: Json) -> str:
    known = ("id", "name", "vendor", "kind", "aliases", "languages", "summary")
    head = pairs({key: hardware.get(key) for key in known})
    lineage = " > ".join(hardware.get("lineage") or ())
    chains = hardware.get("toolchains") or {}
    return "\n".join(
        [
            head,
            f"lineage     {lineage}",
            f"toolchains  {', '.join(chains) or 'none'}",
            *(line for name, chain in chains.items() for line in _toolchain_lines(name, chain)),
            *(_rule_line(rule) for rule in hardware.get("rules") or ()),
            *(
                f"metric      {counter} is {alias['canonical']} (times {alias['scale']:g})"
                for counter, alias in (hardware.get("metrics") or {}).items()
            ),
            "",
            _facts_text(facts),
        ]
    )


def _toolchain_lines(language: str, chain: Json) -> Iterator[str]:
    """What its description says of a kernel's entry, arguments and scalars."""
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


def _rule_line(rule: Json) -> str:
    return f"rule        {rule['id']}: {rule['signal']} where {rule['when']} ({rule['confidence']})"


OnlyKey = Annotated[str | None, typer.Option("--key", help="Only this key, such as l2_size.")]
OnlySubject = Annotated[
    str | None, typer.Option("--subject", help="Only facts whose subject is named so, in part.")
]
OnlySubjectKind = Annotated[
    SubjectKind | None,
    typer.Option(
        "--subject-kind", help="Only facts about the chip itself, a family above it, or unclear."
    ),
]
OnlyDocument = Annotated[
    str | None,
    typer.Option("--document", help="Only facts of this document: its id, or part of its title."),
]
AcceptAll = Annotated[
    bool, typer.Option("--accept-all", help="Accept every proposed fact that the filters leave.")
]
RejectAll = Annotated[
    bool, typer.Option("--reject-all", help="Reject every proposed fact that the filters leave.")
]
IncludeUnclear = Annotated[
    bool,
    typer.Option(
        "--include-unclear", help="With --accept-all, also facts whose subject is not clear."
    ),
]


@app.command("facts")
def list_facts(
    hardware_id: HardwareId,
    proposed: Annotated[
        bool,
        typer.Option(
            "--proposed", help="Facts that were read from documents and wait for a decision."
        ),
    ] = False,
    key: OnlyKey = None,
    subject: OnlySubject = None,
    subject_kind: OnlySubjectKind = None,
    document: OnlyDocument = None,
    accept: Annotated[
        list[str] | None, typer.Option(help="Accept this fact (id); repeat for more.")
    ] = None,
    reject: Annotated[
        list[str] | None, typer.Option(help="Reject this fact (id); repeat for more.")
    ] = None,
    set_: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--set", metavar="FACT_ID VALUE", help="Set the fact FACT_ID to VALUE, and accept it."
        ),
    ] = None,
    withdraw: Annotated[
        list[str] | None,
        typer.Option(help="Take the correction of this fact (id) back; repeat for more."),
    ] = None,
    accept_all: AcceptAll = False,
    reject_all: RejectAll = False,
    include_unclear: IncludeUnclear = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List facts with their sources, or decide about them."""
    where = {"key": key, "subject": subject, "subject_kind": subject_kind, "document": document}
    where = {name: value for name, value in where.items() if value is not None}
    patches = _patches(accept or (), reject or (), set_)
    patches += [(i, {"withdraw": True}) for i in withdraw or ()]
    _check_decisions(accept_all, reject_all, bool(patches), include_unclear)
    with open_target(data_dir, url) as target:
        if accept_all or reject_all:
            status = "accepted" if accept_all else "rejected"
            decision = {"status": status, "where": where, "include_unclear": include_unclear}
            answer: Json = target.patch_facts(hardware_id, {**decision, "actor": actor()})
        elif patches:
            known = target.hardware_one(hardware_id)["id"]
            decided = [target.patch_fact(i, {**patch, "actor": actor()}) for i, patch in patches]
            answer = {"hardware": known, "facts": decided}
        else:
            status = "proposed" if proposed else "effective"
            answer = target.facts(hardware_id, status=status, where=where)
    show(answer, as_json, _facts_text)


def _patches(
    accept: Sequence[str], reject: Sequence[str], set_: tuple[str, str] | None
) -> list[tuple[str, dict[str, Any]]]:
    patches: list[tuple[str, dict[str, Any]]] = [(i, {"status": "accepted"}) for i in accept]
    patches += [(i, {"status": "rejected"}) for i in reject]
    if set_ is not None:
        patches.append((set_[0], _value(set_[1])))
    return patches


def _check_decisions(
    accept_all: bool, reject_all: bool, single: bool, include_unclear: bool
) -> None:
    if accept_all + reject_all + single > 1:
        raise InvalidRequest(
            "more than one decision",
            hint="Give either --accept-all, or --reject-all, or decisions about single facts.",
        )
    if include_unclear and not accept_all:
        raise InvalidRequest(
            "--include-unclear without --accept-all", hint="It says what --accept-all may accept."
        )


def _value(text: str) -> dict[str, Any]:
    """A number in the fact's own unit, or a text."""
    try:
        return {"number": float(text), "text": text}
    except ValueError:
        return {"text": text}


def _facts_text(answer: Json) -> str:
    """A few lines for each fact: the value, its source, how it was derived."""
    left = answer.get("left") or ()
    if not answer["facts"] and not left:
        return "no facts"
    lines = [line for fact in answer["facts"] for line in _fact_lines(fact)]
    others = answer.get("other_kinds") or ()
    if others:
        lines += ["", "also stated for these keys:"]
        lines += [line for fact in others for line in _fact_lines(fact)]
    lines += _open_lines(answer)
    if left:
        lines += ["", f"left as they were: {len(left)}"]
        lines += [f"    {fact['id']}  {fact['key']}: {fact['reason']}" for fact in left]
    return "\n".join(lines)


def _open_lines(answer: Json) -> Iterator[str]:
    """What a person should decide about: outdated values, then keys whose sources disagree."""
    outdated = answer.get("outdated") or ()
    if outdated:
        yield ""
        yield "a newer version of the manual says something else; what was accepted holds:"
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


def _fact_lines(fact: Json) -> Iterator[str]:
    status = "" if fact["status"] == "accepted" else f", {fact['status']}"
    of = f", of {fact['hardware_id']}" if fact.get("inherited") else ""
    value = f"{fact['key']} = {readable(fact['value'], fact['unit'])}"
    yield f"{value}  ({fact['kind']}{status}{of}; {fact['id']})"
    source = [fact["title"], fact["publisher"], fact["locator"]]
    place = ", ".join(part for part in source if part)
    read = f" (read {fact['date']})" if fact["date"] else ""
    link = f"  {fact['url']}" if fact["url"] else ""
    if place:
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


@app.command("new")
def new(
    hardware_id: Annotated[str, typer.Argument(help="Id of the new hardware.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: print it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented hardware.toml to fill in."""
    from kb.hardware.schema import hardware_template

    text = hardware_template(hardware_id)
    if output is not None:
        if output.exists() and not force:
            raise Conflict(f"{output} exists", hint="Give another -o, or --force to replace it.")
        output.write_text(text, encoding="utf-8")
        note(f"wrote {output}; fill it in, then `kernlore hardware add {output}`")
    answer = {"id": hardware_id, "file": str(output) if output else None, "text": text}
    show(answer, as_json, lambda a: "" if output is not None else str(a["text"]).rstrip("\n"))


@app.command("add")
def add(
    file: Annotated[Path, typer.Argument(help="A hardware.toml file.")],
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register a hardware, or replace its description."""
    from kb.hardware.schema import checked_toml

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8: {error}", hint="Save it as UTF-8.") from error
    described = checked_toml(text, str(file))  # refuses what is wrong, with the file's name
    with open_target(data_dir, url) as target:
        added = target.add_hardware(described, str(file))
    show(added, as_json, lambda a: f"{a.get('outcome', 'registered')} {a.get('id')}")


@app.command("remove")
def remove(
    hardware_id: HardwareId,
    with_documents: Annotated[
        bool,
        typer.Option("--with-documents", help="Also delete the documents about it alone."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Remove a chip, family or vendor with its description and facts.

    Refused, with what to do first, while something uses it: what has it as its parent, documents,
    skills in use, keys, a run. Runs and measurements stay. What is built in cannot be removed.
    """
    with open_target(data_dir, url) as target:
        known = target.hardware_one(hardware_id)["id"]
        if not yes and not as_json:
            too = " with the documents that are about it alone" if with_documents else ""
            confirm(f"Remove {known}{too}?", "nothing was removed")
        answer = target.remove_hardware(known, with_documents=with_documents)
    show(answer, as_json, lambda a: "\n".join(_removed_lines(a)))


def _removed_lines(answer: Json) -> Iterator[str]:
    yield f"removed {answer['id']}"
    if answer["facts_removed"]:
        decided = answer["decided_facts_removed"]
        yield f"facts that went too: {answer['facts_removed']}, of which people decided {decided}"
    if answer["documents_removed"]:
        yield f"documents that went too: {', '.join(answer['documents_removed'])}"
    if answer["documents_kept"]:
        yield f"documents about other chips too, which stay: {', '.join(answer['documents_kept'])}"
    if answer["runs_kept"]:
        yield f"runs on it, which stay: {answer['runs_kept']}"
    if answer.get("note"):
        yield str(answer["note"])


@app.command("detect")
def detect(data_dir: DataDir = None, as_json: AsJson = False) -> None:
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
    show(
        probed.devices,
        as_json,
        lambda rows: table(
            ("hardware", "kind", "device", "driver", "detected by"),
            [
                (row["hardware_id_hint"], row["kind"], row["name"], row["driver"], row["how"])
                for row in rows
            ],
        ),
    )


@app.command("check")
def check(hardware_id: HardwareId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check a chip's tools, sample, counters and prompt. Exits 1 if something needed is missing."""
    from api.cli.backends.local import LocalTarget
    from kb.plain import plain
    from optimizer.evaluation.hardware_check import check_hardware

    local = LocalTarget(read_settings(data_dir))
    try:
        checked = check_hardware(local.services, hardware_id)
    finally:
        local.close()
    show({**plain(checked), "ok": checked.ok}, as_json, _check_text)
    if not checked.ok:
        raise typer.Exit(1)


def _check_text(answer: Json) -> str:
    lines = [f"{answer['hardware']}: {'complete' if answer['ok'] else 'something is missing'}"]
    lines += [line for part in answer["parts"] for line in _part_lines(part)]
    for row in answer["languages"]:
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


@app.command("coverage")
def coverage(
    hardware_id: HardwareId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show what is known about a hardware, and what is missing."""
    with open_target(data_dir, url) as target:
        answer = target.coverage(hardware_id)
    show(answer, as_json, lambda c: coverage_text(c, signals=True))


def coverage_text(coverage: Json, *, signals: bool = False) -> str:
    """The topics that something is known about, and the most useful ones that are missing. With
    `signals`, also every signal, covered or not.
    """
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
    return "\n".join(lines)


def _subjects(name: str, subjects: Sequence[Json]) -> str:
    return table(
        (name, "state", "own", "inherited", "documents"),
        [(s["id"], s["state"], s["own"], s["inherited"], s["documents"]) for s in subjects],
    )
