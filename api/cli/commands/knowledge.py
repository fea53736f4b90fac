"""`kernlore knowledge` and `kernlore signals`: browse the knowledge, decide about proposals, and
check folders of knowledge.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from annotated_types import Ge, Le

from api.cli.command import AsJson, DataDir, Url, command, operation_command
from api.cli.output import Json, columns, note, shortened, show
from api.cli.target import CommandTarget, open_target, opened, read_settings, send_logs_to_stderr
from api.operations import hardware as chips
from api.operations import knowledge
from kb.errors import InvalidRequest, NotFound
from kb.plain import Doc
from retrieval.knowledge_validity import STATES

if TYPE_CHECKING:
    from ingestion.builtin.linter import Vocabulary

CheckedKind = Literal["kernel", "signature", "recipe"]
app = typer.Typer(help="Browse and check the knowledge base.")

signals = operation_command(
    None,
    "signals",
    knowledge.list_signals,
    help="List the run-time signals. A signal names what went wrong, such as memory_bound.",
    pick="signals",
    text=columns("signal=id", "group", "title"),
)


def _tree_lines(node: Json, level: int = 0) -> Iterator[str]:
    indent = "  " * level
    counts = f"{node['documents']} documents, {node['passages']} passages"
    yield f"{indent}{node['title']}  ({counts})  {node['path']}".rstrip()
    for child in node.get("children") or ():
        yield from _tree_lines(child, level + 1)
    for text in node.get("texts") or ():
        yield f"{indent}  {text['id']}  {shortened(text['text'], 160)}"
    if node.get("hint"):
        yield f"{indent}hint: {node['hint']}"


@command(app, text=lambda root: "\n".join(_tree_lines(root)))
def tree(
    target: CommandTarget,
    path: Annotated[
        str, typer.Argument(help="A path like hardware/h100/memory. Default: the root.")
    ] = "",
    depth: Annotated[int, Doc("Levels to show."), Ge(1), Le(8)] = 2,
) -> Json:
    """Show the tree of knowledge with counts."""
    node = dict(target.call(knowledge.show_knowledge, path))
    if depth > 1:
        node["children"] = [
            {**child, **tree(target, child["path"], depth - 1)} for child in node["children"]
        ]
    return node


def _delivered_text(table: Json) -> str:
    rows = table["kernels"]
    if not rows:
        return "no whole kernel ships for these; `kernlore knowledge samples` lists those of a chip"
    wanted = ("hardware", "language", "operator", "arrives", "tokens", "kernel_tokens", "title")
    listed = columns(*wanted)(rows)
    return f"{listed}\n{len(rows)} kernels, {table['holes']} of them not in their main loop"


operation_command(
    app,
    "delivered",
    knowledge.list_delivered,
    help="Show which whole kernels reach a context.\n\n"
    "Exits 1 if one does not arrive in its main loop.",
    options=("hardware", "language", "operator", "task", "max_tokens"),
    text=_delivered_text,
    failed=lambda table: bool(table["holes"]),
)


def _validity_text(table: Json) -> str:
    lines = [columns("hardware", "tool", *STATES)(table["counts"])]
    for entry in table["entries"]:
        seen = "; ".join(entry["seen"]) or "no version is known"
        lines.append(f"{entry['state']}  {entry['kind']}  {entry['title']}: {seen}")
    return "\n".join(lines)


operation_command(
    app,
    "validity",
    knowledge.show_validity,
    help="Show what of the knowledge holds with which tools.\n\n"
    "Counts by chip and tool; with --state, --kind or --tool, the entries too.",
    options=("hardware", "tool", "kind", "state", "limit"),
    text=_validity_text,
)


# -- recipes, names and kernels of a chip


def _recipe_lines(recipes: Sequence[Json]) -> str:
    """Each recipe with its source, the values of its parameters, and its constraints."""
    if not recipes:
        return (
            "no recipe is proposed: they come from code samples of uploaded manuals"
            " (`kernlore ingest`); `kernlore skills list` has those of skills"
        )
    lines = []
    for recipe in recipes:
        lines.append(
            f"{recipe['id']}  {recipe['status']}  {recipe['language']} on"
            f" {', '.join(recipe['hardware'])}: {recipe['name']}"
        )
        lines.append(f"  {recipe['document_title']}: {' > '.join(recipe['section'][1:])}")
        for parameter in recipe["body"]["parameters"]:
            values = ", ".join(map(str, parameter["values"]))
            lines.append(
                f"  {parameter['name']} ({parameter['role']}, {parameter['about']}): {values}"
            )
        for constraint in recipe["body"]["constraints"]:
            lines.append(f"  {constraint['predicate']}  [{constraint['why']}]")
    return "\n".join(lines)


@command(app, text=_recipe_lines)
def recipes(
    target: CommandTarget,
    hardware: Annotated[str, Doc("Only recipes for this chip, its family or its vendor.")] = "",
    accept: Annotated[str | None, typer.Option(metavar="ID", help="Accept this recipe.")] = None,
    reject: Annotated[
        str | None, typer.Option(metavar="ID", help="Reject this recipe: it is never used.")
    ] = None,
) -> Any:
    """List recipes proposed from uploaded manuals. They come from code samples; a person accepts or
    rejects them."""
    if accept is not None:
        target.call(knowledge.decide_recipe, accept, status="accepted")
    if reject is not None:
        target.call(knowledge.decide_recipe, reject, status="rejected")
    return target.call(knowledge.list_recipes, hardware)["recipes"]


NO_CARD = "No card: upload a manual that defines the language's names."
NO_PROPOSAL = "No proposed card: --propose asks a language model for some."


@command(app)
def symbols(
    hardware: Annotated[str, Doc("Hardware id, see `kernlore hardware list`.")],
    query: Annotated[
        str, typer.Option("--query", "--q", "-q", help="A name, or words about it.")
    ] = "",
    correct: Annotated[
        str | None, typer.Option(metavar="ID", help="Correct the card with this id.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT",
            help="With --correct: signature, meaning or example and its text; repeat for more.",
        ),
    ] = None,
    proposed: Annotated[bool, Doc("List cards that a language model has proposed.")] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Accept this proposed card; repeat for more."),
    ] = None,
    reject: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Reject this proposed card; repeat for more."),
    ] = None,
    propose: Annotated[
        bool,
        Doc(
            "Let a language model propose cards for sections that name code and have no card."
            " Text that is not in the section word for word is dropped."
        ),
    ] = False,
    models: Annotated[
        str, typer.Option(metavar="NAME", help="With --propose: the model's litellm name.")
    ] = "",
    api_base: Annotated[
        str | None,
        Doc(
            "With --propose: address of an OpenAI-compatible server. Default: that of the provider."
        ),
    ] = None,
    sections: Annotated[
        int, Doc("With --propose: ask about at most this many sections."), Ge(1)
    ] = 50,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """List the names of a chip's languages. Each has its signature and limits.

    With --propose, a language model proposes cards; none is used before a person accepts it.
    """
    if propose:
        if url is not None:
            raise InvalidRequest("--propose with --url", hint="Run it where the data directory is.")
        return _propose(hardware, models, api_base, sections, data_dir, as_json)
    if models:
        raise InvalidRequest("--models without --propose", hint="Add --propose.")
    changes: list[tuple[str, dict[str, Any]]] = [
        *((card, {"status": "accepted"}) for card in accept or ()),
        *((card, {"status": "rejected"}) for card in reject or ()),
    ]
    if correct is not None:
        changes.append((correct, dict(entry.partition("=")[::2] for entry in field or ())))
    status: Any = "proposed" if proposed else "accepted"
    with open_target(data_dir, url) as target:
        if changes:
            rows = [target.call(chips.correct_symbol, card, **change) for card, change in changes]
        else:
            listed = target.call(chips.list_symbols, hardware, q=query, status=status)
            rows = listed["symbols"]
    none = NO_PROPOSAL if proposed else NO_CARD
    show(rows, as_json, lambda cards: _symbol_lines(cards) or none)
    return 0


def _symbol_lines(cards: Sequence[Json]) -> str:
    lines = []
    for card in cards:
        head = card["signature"] or card["name"]
        origin = "" if card["origin"] == "structure" else f"  ({card['status']}, {card['origin']})"
        lines.append(f"{card['id']}  {card['kind']}  {card['name']}  {head}{origin}")
        lines += [f"    {operand}: {meaning}" for operand, meaning in card["operands"] if meaning]
        lines += [f"    {text}" for text in (card["meaning"], *card["limits"]) if text]
        if card["example"]:
            lines.append(f"    example: {card['example']}")
        lines.append(f"    {card['document_title']}: {' > '.join(card['path'][-2:])}")
    return "\n".join(lines)


def _propose(
    hardware: str,
    models: str,
    api_base: str | None,
    sections: int,
    data_dir: Path | None,
    as_json: bool,
) -> int:
    """Let a model propose cards; 1 where it failed before the end."""
    from api.section_models import propose_symbols, section_model

    model = section_model(models, api_base)
    with opened(data_dir) as local:
        report = propose_symbols(local.services, hardware, model, sections, note).as_json()
    show(report, as_json, _proposed_lines)
    return 1 if report["stopped"] else 0


def _proposed_lines(report: Json) -> str:
    lines = [
        f"{report['sections']} sections of {report['hardware']} name code and have no card:"
        f" {report['asked']} sent to the model, {report['reused']} with a stored answer,"
        f" {report['left']} left",
        f"{report['proposed']} cards proposed, {len(report['kept'])} stored;"
        f" {report['fields_kept']} of {report['fields_proposed']} texts stored",
    ]
    lines += [f"  refused, {why}: {count}" for why, count in report["refused"].items()]
    lines += [f"  not in the section, {name}: {n}" for name, n in report["dropped"].items()]
    lines += [f"  no use: {problem}" for problem in report["unusable"]]
    if report["stopped"]:
        lines.append(f"stopped: {report['stopped']}")
    if report["kept"]:
        lines.append(
            f"`kernlore knowledge symbols --hardware {report['hardware']} --proposed` lists them;"
            " --accept ID, --reject ID"
        )
    return "\n".join(lines)


def _sample_lines(kernels: Sequence[Json]) -> str:
    lines = []
    for kernel in kernels:
        source = kernel["document_title"] or f"run {kernel['run_id']}"
        lines.append(
            f"{kernel['id']}  {kernel['status']}  {kernel['operator'] or 'operator unknown'}"
            f"  {kernel['title']}  [{source}]"
        )
        lines += [f"    {line}" for line in kernel["code"].splitlines()]
    return "\n".join(lines) or (
        "No whole kernel: upload a manual that shows one, in a code block with its language, from"
        " the line that names it to its end. `samples_left_out` of a document's job names the"
        " missing parts of a block (`kernlore jobs show`)."
    )


samples = operation_command(
    app,
    "samples",
    chips.list_samples,
    help="List whole kernels for a chip.\n\nThey come from runs and from documents, built-in ones"
    " too. `kernlore knowledge check` compiles them again.",
    parameters={
        "hardware_id": Annotated[
            str, typer.Option("--hardware", help="Hardware id, see `kernlore hardware list`.")
        ],
        "operator": Annotated[str, Doc("Only kernels that compute this.")],
    },
    pick="samples",
    text=_sample_lines,
)


@command(
    app,
    text=lambda result: _knowledge_check_lines(result),
    failed=lambda result: any(change["change"] == "expired" for change in result["changes"]),
)
def check(
    local: CommandTarget,
    toolchain: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder whose programs (also in `bin`) and Python packages precede the installed"
            " ones; repeat to compare versions. Default: the installed tools.",
        ),
    ] = None,
    hardware: Annotated[
        str | None, Doc("Only kernels for this chip, its family or its vendor.")
    ] = None,
    kind: Annotated[CheckedKind | None, Doc("Only entries of this kind.")] = None,
    tool: Annotated[
        list[str] | None, Doc("Only entries that depend on this tool; repeat for several.")
    ] = None,
) -> Json:
    """Check the knowledge with the tools of this machine.

    Compiles and runs the built-in kernels, makes tools print the texts of error signatures, and
    compiles the recipes of skills. Records which versions of tools confirm or refuse them. What the
    newest version refuses is no longer delivered. Exits 1 if something expired.
    """
    from optimizer.knowledge_check import KINDS, check_knowledge

    for folder in toolchain or ():
        if not folder.is_dir():
            raise InvalidRequest(f"{folder} is no folder", hint="Name the folder of a toolchain.")
    folders = [folder.resolve() for folder in toolchain or ()]
    local.load_knowledge(note)
    kinds = [kind] if kind else KINDS
    return asdict(check_knowledge(local.services, folders, hardware, kinds, tool or (), note))


def _knowledge_check_lines(result: Json) -> str:
    """The counts by chip and tool, then what expired or was refused."""
    counts = Counter(
        tuple(row[name] for name in ("kind", "hardware", "tool", "version", "change"))
        for row in result["changes"]
    )
    lines = [" ".join(map(str, (*key, count))) for key, count in sorted(counts.items())]
    lines += [
        f"{row['change']}: {row['subject']} with {row['tool']} {row['version']}: {row['detail']}"
        for row in result["changes"]
        if row["change"] in ("expired", "refused")
    ]
    reasons = Counter(result["not_checked"].values())
    lines += [f"not checked: {count}, {reason}" for reason, count in sorted(reasons.items())]
    return "\n".join([*lines, *result["remarks"]]) or "nothing could be checked"


# -- folders of knowledge


@command(
    app,
    text=lambda rows: "\n".join(f"{row['path']}: {row['message']}" for row in rows),
    failed=bool,
)
def lint(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A folder in the format of hw_manuals/FORMAT.md. Default: the built-in one."
        ),
    ] = None,
) -> Any:
    """Check a folder of knowledge for mistakes. Exits 1 if there are any."""
    from ingestion.builtin.linter import lint_folder

    folder = folder or read_settings().knowledge_dir
    if not folder.is_dir():
        raise NotFound(f"{folder} is no folder", hint="Give the folder that contains hardware/.")
    return lint_folder(folder, vocabulary())


def vocabulary() -> Vocabulary:
    """The names that knowledge may refer to in this version."""
    from ingestion.builtin.linter import Vocabulary
    from retrieval.diagnose.linear_patterns import UnsafePattern, compile_linear
    from retrieval.diagnose.metrics import load_metrics
    from retrieval.diagnose.signals import load_signals

    def signature_problem(pattern: str) -> str | None:
        try:
            compile_linear(pattern)
        except UnsafePattern as problem:
            return str(problem)
        return None

    names = frozenset(metric.name for metric in load_metrics())
    return Vocabulary(load_signals().ids, names, signature_problem)


@command(app, text=lambda row: f"{row['path']}: {row['bytes']:,} bytes")
def prepare() -> Json:
    """Prepare the store for new data directories.

    The first start on a new directory then copies the built-in knowledge instead of reading it.
    `make setup` runs this command; KERNLORE_PREPARED_DIR names another folder than that of the
    installation.
    """
    from api.prepared import prepare

    send_logs_to_stderr("warning")
    path = prepare(read_settings())
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {"path": str(path), "bytes": size}


@command(app, text=lambda row: f"{row['path']}: {row['passages']} passages, {row['bytes']:,} bytes")
def vectors(
    folder: Annotated[
        Path | None, typer.Argument(help="A folder of knowledge. Default: the built-in one.")
    ] = None,
) -> Json:
    """Write the readings, vectors and text values of a folder.

    Run it after a change of the documents. A new data directory takes them from there; documents
    without them are read and embedded as any other document is.
    """
    from api.services import open_services
    from ingestion.builtin.precomputed import RecordingReader, embed_folder, write_readings
    from retrieval.knowledge_base import ship_phrases
    from retrieval.snapshot.store import write_text_values

    send_logs_to_stderr("warning")
    folder = folder or read_settings().knowledge_dir
    with tempfile.TemporaryDirectory() as scratch:
        settings = read_settings(Path(scratch)).model_copy(update={"knowledge_dir": folder})
        services = open_services(settings)
        try:
            services.load_builtin()
            reader = RecordingReader(services.shipped_readings, services.embedder, services.tagger)
            services.worker(reader, anew=True).drain()
            write_readings(folder, reader.readings)
            path = embed_folder(services.catalog, folder, services.embedder.fingerprint)
            count = services.vectors()[0]
            ship_phrases(services.embedder, folder)
            write_text_values(services.catalog, folder)
        finally:
            services.close()
    return {"path": str(path), "passages": count, "bytes": path.stat().st_size}
