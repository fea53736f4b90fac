"""The catalog's tables, written once for SQLite and PostgreSQL (`kb.catalog.dialect`).

Times are UTC ISO-8601 text, which sorts as time; structured values are JSON; ids are prefixed text.
Every table that holds content of a caller has `access_scope`. Services of the release before this
one may write to the same catalog: columns are added by migrations, and never change their meaning.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from kb.catalog.dialect import Integer, Json

# -- Shorthands for columns

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def id_column() -> Column[str]:
    """The primary key `id`."""
    return Column("id", String, primary_key=True)


def ref(name: str, target: str, *, nullable: bool = False, index: bool = True) -> Column[str]:
    """A foreign key; the row is deleted with the one it points to."""
    key = ForeignKey(target, ondelete="CASCADE")
    return Column(name, String, key, nullable=nullable, index=index)


def when(name: str = "created_at", *, nullable: bool = False) -> Column[str]:
    """A time: UTC, ISO-8601 text."""
    return Column(name, String, nullable=nullable)


def scope() -> Column[str]:
    """The owner of the row; "all" by default."""
    return Column("access_scope", String, nullable=False, server_default=text("'all'"))


def json(name: str, *, nullable: bool = False, default: str = "{}") -> Column[Any]:
    """A structured value; `default` is the JSON text that a row gets without one."""
    if nullable:
        return Column(name, Json, nullable=True)
    return Column(name, Json, nullable=False, server_default=text(f"'{default}'"))


# -- Documents and their content

# A document is a logical manual; a version is one content hash of it, read by one pipeline.
# Sections and passages belong to a version. The hardware and languages that one is about are
# many-to-many: the document's scope unless the section overrides it; `passage_hardware` holds the
# effective hardware, with the row "any" for no restriction.

documents = Table(
    "documents",
    metadata,
    id_column(),
    Column("source_key", String, nullable=False),
    Column("title", String, nullable=False),
    Column("category", String, nullable=False),
    Column("origin", String, nullable=False),  # builtin | upload
    Column("current_version_id", String, nullable=True),
    # a counter of changes (kb.catalog.meta) when what answers quote of it last changed
    Column("stamp", Integer, nullable=False, server_default=text("0")),
    when(),
    when("updated_at"),
    scope(),
    UniqueConstraint("access_scope", "source_key"),
)

document_scopes = Table(
    "document_scopes",
    metadata,
    ref("document_id", "documents.id", index=False),
    Column("kind", String, nullable=False),  # hardware | language
    Column("value", String, nullable=False),
    PrimaryKeyConstraint("document_id", "kind", "value"),
    Index(None, "kind", "value"),
)

document_versions = Table(
    "document_versions",
    metadata,
    id_column(),
    ref("document_id", "documents.id"),
    Column("number", Integer, nullable=False),
    Column("sha256", String, nullable=False, index=True),
    Column("pipeline", String, nullable=False),  # fingerprint of parser + chunker + tagger
    Column("state", String, nullable=False),  # staged | current | superseded | failed
    Column("file_name", String, nullable=False),
    Column("format", String, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("blob_key", String, nullable=False),
    # title, category, hardware and languages as uploaded; the document takes them over when the
    # version becomes current
    json("declared"),
    json("report"),
    when(),
    UniqueConstraint("document_id", "number"),
)

sections = Table(
    "sections",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    ref("version_id", "document_versions.id"),
    Column("parent_id", String, nullable=True, index=True),
    Column("ordinal", Integer, nullable=False),
    Column("level", Integer, nullable=False),
    Column("heading", String, nullable=False),
    json("path", default="[]"),
    Column("page_index", Integer, nullable=True),
    Column("page_label", String, nullable=True),
    # ids from the heading that narrow the document's scope; null inherits
    json("hardware_scope", nullable=True),
    Index(None, "version_id", "ordinal"),
)

passages = Table(
    "passages",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),  # rowid of the lexical index
    Column("id", String, nullable=False, unique=True),
    ref("document_id", "documents.id"),
    ref("version_id", "document_versions.id"),
    ref("section_id", "sections.id"),
    Column("ordinal", Integer, nullable=False),  # within the version
    Column("kind", String, nullable=False),  # text | list | table | code
    Column("lead", Text, nullable=False),  # caption and header rows that a table piece repeats
    Column("text", Text, nullable=False),
    Column("language", String, nullable=True),
    Column("text_sha256", String, nullable=False),  # of the machine's text: anchor of corrections
    Column("embed_sha256", String, nullable=False, index=True),
    json("boxes", default="[]"),
    Column("page_index", Integer, nullable=True),
    Column("page_label", String, nullable=True),
    Column("prose", Integer, nullable=False),  # function words, per mille; less: a reference
    Column("corrected", Boolean, nullable=False, server_default=false()),
    # of the current version of a live document
    Column("active", Boolean, nullable=False, server_default=false()),
    scope(),
    Index(None, "version_id", "ordinal"),
)

passage_hardware = Table(
    "passage_hardware",
    metadata,
    ref("passage_id", "passages.id", index=False),
    Column("hardware_id", String, nullable=False),
    PrimaryKeyConstraint("passage_id", "hardware_id"),
    Index(None, "hardware_id"),
)

passage_tags = Table(
    "passage_tags",
    metadata,
    ref("passage_id", "passages.id", index=False),
    Column("kind", String, nullable=False),  # signal | topic | language
    Column("value", String, nullable=False),
    Column("origin", String, nullable=False),  # auto | document | person
    PrimaryKeyConstraint("passage_id", "kind", "value"),
    Index(None, "kind", "value"),
)

corrections = Table(
    "corrections",
    metadata,
    id_column(),
    ref("document_id", "documents.id"),
    Column("target", String, nullable=False),  # passage | section | symbol
    # sha256 of the machine's text, the heading path, or the name of the symbol
    Column("anchor", String, nullable=False),
    Column("field", String, nullable=False),  # text | tags | hardware | card | proposal
    json("value"),
    Column("actor", String, nullable=False),
    when(),
    Index(None, "document_id", "target", "anchor"),
)

embeddings = Table(
    "embeddings",
    metadata,
    Column("text_sha256", String, nullable=False),
    Column("model_fingerprint", String, nullable=False),
    Column("vector", LargeBinary, nullable=False),  # little-endian float32, unit length
    when(),
    PrimaryKeyConstraint("text_sha256", "model_fingerprint"),
)

# What a language model wrote about a section (`kb.catalog.knowledge.drafts`). By its text, so
# that a section keeps its reading over versions of the document and loses it with a correction.
readings = Table(
    "readings",
    metadata,
    ref("document_id", "documents.id", index=False),
    Column("text_sha256", String, nullable=False),  # of headings and text
    Column("model", String, nullable=False),
    json("lines", default="[]"),
    when(),
    PrimaryKeyConstraint("document_id", "text_sha256"),
)

moves = Table(
    "moves",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    ref("document_id", "documents.id", nullable=True),
    Column("section_id", String, nullable=True),
    Column("passage_id", String, nullable=True),
    json("hardware", default="[]"),
    json("languages", default="[]"),
    json("signals", default="[]"),
    Column("predicate", String, nullable=False),
    json("change"),  # {role, direction, factor?, to?}
    Column("limit_fact", String, nullable=True),
    Column("why", String, nullable=False),
    Column("status", String, nullable=False),  # accepted | proposed | rejected
    Column("origin", String, nullable=False),  # builtin | manual | learned
    when(),
    scope(),
)

# With which version of a tool something was seen to hold (`kb.validity`): as a document states it,
# or as a check on a machine has found. `subject` is a document, a section, `skill:NAME` or
# `signature:ID`; bounds are inclusive, "" for none.
validities = Table(
    "validities",
    metadata,
    id_column(),
    Column("subject", String, nullable=False, index=True),
    ref("document_id", "documents.id", nullable=True),
    Column("tool", String, nullable=False),
    Column("min", String, nullable=False),
    Column("max", String, nullable=False),
    Column("target", String, nullable=False),
    Column("driver", String, nullable=False),
    Column("checked", String, nullable=False),  # ran | compiled | read
    Column("date", String, nullable=False),
    Column("holds", Boolean, nullable=False),
    Column("origin", String, nullable=False),  # stated | check
    Column("title", String, nullable=False, server_default=text("''")),  # of what was checked
    Column("detail", Text, nullable=False, server_default=text("''")),  # the tool's message
    when(),
    scope(),
)

recipes = Table(
    "recipes",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("language", String, nullable=False),
    ref("document_id", "documents.id", nullable=True),
    Column("passage_id", String, nullable=True),
    Column("skill_id", String, nullable=True, index=True),
    json("hardware", default="[]"),
    json("body"),  # template, typed parameters, constraints
    Column("status", String, nullable=False),
    Column("origin", String, nullable=False),
    when(),
    scope(),
)

symbols = Table(
    "symbols",
    metadata,
    id_column(),
    ref("document_id", "documents.id"),
    ref("version_id", "document_versions.id"),
    ref("section_id", "sections.id", index=False),
    Column("ordinal", Integer, nullable=False),  # within the version
    Column("name", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("language", String, nullable=False),
    json("hardware", default="[]"),
    json("card"),  # signature, operands, meaning, limits, example, further
    Column("corrected", Boolean, nullable=False, server_default=false()),
    Column("active", Boolean, nullable=False, server_default=false()),
    scope(),
    Column("origin", String, nullable=False, server_default=text("'structure'")),  # | model NAME
    # accepted | proposed | rejected
    Column("status", String, nullable=False, server_default=text("'accepted'")),
    Index(None, "active", "name"),
)

samples = Table(
    "samples",
    metadata,
    id_column(),
    # of a manual; null for a kernel that a run has written
    ref("document_id", "documents.id", nullable=True),
    ref("version_id", "document_versions.id", nullable=True, index=False),
    Column("section_id", String, nullable=True),
    Column("run_id", String, nullable=True, index=True),
    Column("title", String, nullable=False),
    Column("operator", String, nullable=False),
    Column("language", String, nullable=False),
    json("hardware", default="[]"),
    json("shapes", default="[]"),
    json("symbols", default="[]"),
    Column("code", Text, nullable=False),
    Column("code_sha256", String, nullable=False, index=True),
    Column("status", String, nullable=False),  # untried | refused | compiles | runs | right
    Column("evidence", String, nullable=False),
    Column("corrected", Boolean, nullable=False, server_default=false()),
    Column("active", Boolean, nullable=False, server_default=false()),
    when(),
    scope(),
)


# -- Hardware, which knowledge is about, and devices, which measurements were taken on

hardware = Table(
    "hardware",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("vendor", String, nullable=True),
    Column("parent_id", String, nullable=True, index=True),
    Column("kind", String, nullable=False),  # accelerator | family | vendor
    Column("summary", String, nullable=False),
    json("aliases", default="[]"),
    json("languages", default="[]"),
    json("signatures", default="[]"),
    json("toolchains"),
    Column("spec", Text, nullable=False),  # the hardware.toml as given
    Column("origin", String, nullable=False),  # builtin | api | removed
    when(),
    when("updated_at"),
    scope(),
)

facts = Table(
    "facts",
    metadata,
    id_column(),
    ref("hardware_id", "hardware.id"),
    Column("key", String, nullable=False),
    Column("number", Float, nullable=True),
    Column("text", String, nullable=False),  # the value as written in its source
    Column("unit", String, nullable=False),
    Column("kind", String, nullable=False),  # datasheet | measured | derived
    Column("status", String, nullable=False),  # accepted | proposed | rejected
    Column("origin", String, nullable=False),  # spec | table | sentence | person
    Column("title", String, nullable=False),
    Column("publisher", String, nullable=False),
    Column("locator", String, nullable=False),
    Column("url", String, nullable=True),
    Column("date", String, nullable=True),
    Column("note", String, nullable=True),
    Column("formula", String, nullable=True),
    Column("subject", String, nullable=True),  # names the subject: a header, or a chip
    Column("document_id", String, nullable=True, index=True),
    Column("version_id", String, nullable=True),
    Column("page_index", Integer, nullable=True),
    Column("page_label", String, nullable=True),
    json("cell", nullable=True),  # {caption, row, column, row_label, column_label} | {sentence}
    Column("actor", String, nullable=True),
    when(),
    scope(),
    Column("subject_kind", String, nullable=True),  # chip | family | unclear; null: not looked at
    Index(None, "hardware_id", "key", "status"),
)

# Sections about a signal of a chip, which a model drafted from the chip's manuals.
drafts = Table(
    "drafts",
    metadata,
    id_column(),
    ref("hardware_id", "hardware.id"),
    Column("signal", String, nullable=False),
    Column("title", String, nullable=False),
    json("sentences", default="[]"),  # {text, quote, document_id, section_id, path}
    Column("model", String, nullable=False),
    Column("status", String, nullable=False),  # proposed | accepted | rejected
    Column("actor", String, nullable=True),
    when(),
    scope(),
    UniqueConstraint("access_scope", "hardware_id", "signal"),
)

devices = Table(
    "devices",
    metadata,
    id_column(),
    ref("hardware_id", "hardware.id"),
    Column("uuid", String, nullable=False),
    Column("name", String, nullable=False),
    Column("driver", String, nullable=True),
    Column("memory_bytes", Integer, nullable=True),
    Column("copy_bandwidth", Float, nullable=True),  # B/s, measured
    json("matmul_peak"),  # dtype -> flop/s, measured
    Column("launch_latency", Float, nullable=True),  # s, measured
    json("environment"),
    when("measured_at", nullable=True),
    when(),
    scope(),
    UniqueConstraint("uuid", "driver"),
)

toolchains = Table(
    "toolchains",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("language", String, nullable=False),
    Column("hardware_id", String, nullable=True),
    json("versions"),  # compiler, runtime, triton, torch, driver
    Column("fingerprint", String, nullable=False, unique=True),
    when(),
)


# -- Problems with named cases, candidates, evaluations, runs and their trees

# `evaluation_cases` repeats op family, dtype, shape bucket and hardware, so that a warm start is
# one indexed look-up: the best correct candidates of the same op family, dtype and lineage, nearest
# shape bucket first.

problems = Table(
    "problems",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("sha256", String, nullable=False, unique=True),
    Column("provider", String, nullable=False),
    Column("op_family", String, nullable=False, index=True),
    Column("blob_key", String, nullable=False),
    json("policy"),  # tolerance, precision, library, reduction length
    when(),
    scope(),
)

problem_cases = Table(
    "problem_cases",
    metadata,
    id_column(),
    ref("problem_id", "problems.id"),
    Column("name", String, nullable=False),
    Column("dtype", String, nullable=False),
    json("shapes", default="[]"),
    Column("shape_bucket", String, nullable=False),
    Column("distribution", String, nullable=False),
    Column("weight", Float, nullable=False),
    Column("held_out", Boolean, nullable=False),
    UniqueConstraint("problem_id", "name"),
)

candidates = Table(
    "candidates",
    metadata,
    id_column(),
    Column("bundle_sha256", String, nullable=False, unique=True),
    Column("language", String, nullable=False),
    Column("entry", String, nullable=False),
    Column("origin", String, nullable=False),  # config | rewrite | recipe | llm | external
    json("parameters"),
    Column("blob_key", String, nullable=False),
    when(),
    scope(),
)

evaluations = Table(
    "evaluations",
    metadata,
    id_column(),
    # problem + cases + bundle + device + toolchain + policy and harness versions
    Column("key", String, nullable=False, unique=True),
    ref("problem_id", "problems.id"),
    ref("candidate_id", "candidates.id"),
    Column("device_id", String, nullable=True, index=True),
    Column("toolchain_id", String, nullable=True),
    Column("harness_version", String, nullable=False),
    Column("stage", String, nullable=False),
    Column("state", String, nullable=False),
    Column("validity", String, nullable=True),
    Column("timing", String, nullable=True),  # wall | simulator | must be repeated
    Column("speedup", Float, nullable=True),
    Column("speedup_low", Float, nullable=True),
    Column("speedup_high", Float, nullable=True),
    json("isolation"),
    json("metrics"),
    json("verdict"),
    json("stages"),
    when(),
    when("finished_at", nullable=True),
    scope(),
    Index(None, "state"),
)

evaluation_cases = Table(
    "evaluation_cases",
    metadata,
    id_column(),
    ref("evaluation_id", "evaluations.id"),
    ref("case_id", "problem_cases.id"),
    Column("op_family", String, nullable=False),
    Column("dtype", String, nullable=False),
    Column("shape_bucket", String, nullable=False),
    Column("hardware_id", String, nullable=False),
    Column("candidate_id", String, nullable=False),
    Column("correct", Boolean, nullable=True),
    Column("baseline_us", Float, nullable=True),
    Column("candidate_us", Float, nullable=True),
    Column("speedup", Float, nullable=True),
    Column("speedup_low", Float, nullable=True),
    json("errors"),
    UniqueConstraint("evaluation_id", "case_id"),
    Index("ix_warm_start", "op_family", "dtype", "hardware_id", "shape_bucket", "speedup_low"),
)

# Answers of people to integrity flags. Rows are added, never changed.
evaluation_reviews = Table(
    "evaluation_reviews",
    metadata,
    id_column(),
    ref("evaluation_id", "evaluations.id"),
    Column("sequence", Integer, nullable=False),  # of the evaluation's, from 1
    Column("decision", String, nullable=False),  # accepted | refused
    Column("actor", String, nullable=False),
    Column("reason", String, nullable=False),
    when(),
    scope(),
    UniqueConstraint("evaluation_id", "sequence"),
)

runs = Table(
    "runs",
    metadata,
    id_column(),
    ref("problem_id", "problems.id"),
    Column("hardware_id", String, nullable=False),
    Column("device_id", String, nullable=True),
    Column("state", String, nullable=False),
    Column("policy", String, nullable=False),
    Column("seed", Integer, nullable=False),
    json("goal"),
    json("settings"),
    json("summary"),
    Column("cost_usd", Float, nullable=False),
    when(),
    when("finished_at", nullable=True),
    when("cancel_requested_at", nullable=True),
    scope(),
    Index(None, "created_at"),
    Index(None, "hardware_id", "created_at"),
    Index(None, "state", "cost_usd"),
)

nodes = Table(
    "nodes",
    metadata,
    id_column(),
    ref("run_id", "runs.id"),
    Column("number", Integer, nullable=False),
    Column("parent_id", String, nullable=True, index=True),
    Column("island", Integer, nullable=False),
    Column("memory", String, nullable=False),  # none | parent | siblings | both | ancestors
    Column("synthesizer", String, nullable=False),
    Column("state", String, nullable=False, server_default=text("'evaluated'")),
    Column("candidate_id", String, nullable=True, index=True),
    Column("evaluation_id", String, nullable=True, index=True),
    Column("retrieval_id", String, nullable=True),
    json("shown"),
    json("claimed"),
    json("attributed"),
    json("usage"),
    json("record"),
    when(),
    UniqueConstraint("run_id", "number"),
)

trajectories = Table(
    "trajectories",
    metadata,
    id_column(),
    Column("run_id", String, nullable=True, index=True),
    Column("origin", String, nullable=False),
    Column("blob_key", String, nullable=False),
    json("summary"),
    when(),
    scope(),
)


# -- Retrievals with their outcomes, and skills with their history, uses and measurements

retrievals = Table(
    "retrievals",
    metadata,
    id_column(),
    json("request"),
    Column("hardware_id", String, nullable=True, index=True),
    json("signals", default="[]"),
    json("excerpt_ids", default="[]"),
    json("skill_ids", default="[]"),
    json("move_ids", default="[]"),
    json("skills_withheld", default="[]"),
    Column("context_sha256", String, nullable=False),
    Column("run_id", String, nullable=True, index=True),
    Column("node_id", String, nullable=True),
    Column("milliseconds", Float, nullable=False),
    Column("catalog_revision", Integer, nullable=False),
    when(),
    scope(),
    Index(None, "created_at"),
)

outcomes = Table(
    "outcomes",
    metadata,
    id_column(),
    ref("retrieval_id", "retrievals.id"),
    json("used", default="[]"),
    Column("correct", Boolean, nullable=True),
    Column("speedup", Float, nullable=True),
    Column("baseline_speedup", Float, nullable=True),  # of the parent kernel, same reference
    Column("gain", Float, nullable=True),  # speedup over baseline_speedup
    Column("helped", Integer, nullable=True),  # 1, 0 or unknown
    Column("note", String, nullable=True),
    when(),
)


skills = Table(
    "skills",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("tier", String, nullable=False),  # curated | learned
    Column("state", String, nullable=False),  # candidate | active | suspect | retired | quarantined
    Column("polarity", String, nullable=False),  # use | avoid
    Column("transformation", String, nullable=False),
    Column("description", String, nullable=False),
    Column("compatibility", String, nullable=True),
    Column("license", String, nullable=True),
    Column("body", Text, nullable=False),
    Column("predicate", String, nullable=True),  # preconditions, kb.predicates
    json("moves", default="[]"),
    json("recipe", nullable=True),
    json("sources", default="[]"),
    json("metadata"),
    Column("content_sha256", String, nullable=False, index=True),
    Column("structured_key", String, nullable=False, index=True),
    Column("origin", String, nullable=False),  # shipped | import | run | person
    Column("origin_run_id", String, nullable=True),
    Column("toolchain_id", String, nullable=True),  # of its newest evidence
    # Of the present text within the present scope: uses with a known effect, and those that helped.
    Column("trials", Integer, nullable=False, server_default=text("0")),
    Column("wins", Integer, nullable=False, server_default=text("0")),
    when("last_used_at", nullable=True),
    when("written_at", nullable=True),  # the present text; narrowing writes none
    when(),
    when("updated_at"),
    scope(),
    UniqueConstraint("access_scope", "name"),
    Index(None, "state"),
)

skill_scopes = Table(
    "skill_scopes",
    metadata,
    ref("skill_id", "skills.id", index=False),
    Column("kind", String, nullable=False),  # hardware | language | op | dtype | signal
    Column("value", String, nullable=False),
    PrimaryKeyConstraint("skill_id", "kind", "value"),
    Index(None, "kind", "value"),
)

skill_events = Table(
    "skill_events",
    metadata,
    id_column(),
    ref("skill_id", "skills.id"),
    Column("sequence", Integer, nullable=False),
    Column("event", String, nullable=False),
    Column("from_state", String, nullable=True),
    Column("to_state", String, nullable=True),
    Column("actor", String, nullable=False),
    Column("reason", String, nullable=False),
    json("details"),
    when(),
    UniqueConstraint("skill_id", "sequence"),
)

skill_links = Table(
    "skill_links",
    metadata,
    ref("skill_id", "skills.id", index=False),
    Column("other_id", String, nullable=False),
    Column("kind", String, nullable=False),  # conflicts_with
    when(),
    PrimaryKeyConstraint("skill_id", "other_id", "kind"),
    Index(None, "other_id"),
)

skill_uses = Table(
    "skill_uses",
    metadata,
    id_column(),
    ref("retrieval_id", "retrievals.id"),
    # One answer can have several outcomes: the optimizer tries more than one child of a node.
    Column("outcome_id", String, nullable=True),
    ref("skill_id", "skills.id", index=False),
    Column("version", Integer, nullable=False),  # of the skill at that time
    Column("role", String, nullable=False),  # shown | used | withheld
    Column("helped", Integer, nullable=True),  # 1, 0 or unknown
    Column("gain", Float, nullable=True),  # time before over time after
    json("situation"),  # op, op_family, dtype, language, hardware, quantities of the problem
    when(),
    Index(None, "skill_id", "role", "created_at"),
)

evidence = Table(
    "evidence",
    metadata,
    id_column(),
    Column("subject_kind", String, nullable=False),  # skill | move | recipe | candidate
    Column("subject_id", String, nullable=False),
    Column("hardware_id", String, nullable=False),
    Column("device_id", String, nullable=True),
    Column("toolchain_id", String, nullable=True),
    Column("problem_id", String, nullable=True),
    Column("case_id", String, nullable=True),
    Column("evaluation_id", String, nullable=True),
    Column("kind", String, nullable=False),  # ablation | pair | lift | simulator
    Column("n", Integer, nullable=False),
    Column("baseline_us", Float, nullable=True),
    Column("measured_us", Float, nullable=True),
    Column("speedup", Float, nullable=True),
    Column("speedup_low", Float, nullable=True),
    Column("speedup_high", Float, nullable=True),
    json("details"),
    when(),
    scope(),
    Index(None, "subject_kind", "subject_id"),
)


# -- Named values of the catalog itself

meta = Table(
    "meta",
    metadata,
    Column("key", String, primary_key=True),
    json("value"),
    when("updated_at"),
)


# -- Work that several processes share (`kb.catalog.work`)

work = Table(
    "work",
    metadata,
    id_column(),
    Column("kind", String, nullable=False),  # ingest | evaluation | trajectory | run
    # queued | running | ready | partial | failed | unverified
    Column("state", String, nullable=False),
    Column("subject_id", String, nullable=True, index=True),  # of ingest: the document
    json("payload"),
    json("progress"),
    json("result"),
    json("error", nullable=True),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("lease_owner", String, nullable=True),
    Column("lease_expires_at", String, nullable=True),
    Column("heartbeat_at", String, nullable=True),
    when(),
    when("started_at", nullable=True),
    when("finished_at", nullable=True),
    scope(),
    # Of jobs of documents:
    Column("group_id", String, nullable=True),  # of one upload
    Column("share", String, nullable=False, server_default=""),  # shares take turns
    Column("behind", Boolean, nullable=False, server_default=false()),  # after all others
    Column("passages", Integer, nullable=True),  # None until the document was read
    Column("passages_done", Integer, nullable=False, server_default=text("0")),
    Index(None, "kind", "state", "created_at"),
    Index(None, "kind", "state", "behind", "share", "created_at"),
    Index(None, "kind", "share", "started_at"),
    Index(None, "group_id", "created_at"),
)

# Contexts that a run sends to an external optimizer, and the answers.
run_mail = Table(
    "run_mail",
    metadata,
    Column("run_id", String, nullable=False),
    Column("step", Integer, nullable=False),
    json("context"),
    json("candidate", nullable=True),
    PrimaryKeyConstraint("run_id", "step"),
)

# Requests of a caller to all replicas, since it was last forgotten.
request_counts = Table(
    "request_counts",
    metadata,
    Column("who", String, nullable=False),
    Column("kind", String, nullable=False),  # request | upload
    Column("sent", Integer, nullable=False),
    when("at"),
    PrimaryKeyConstraint("who", "kind"),
)


# -- Keys of callers and sessions of pages; a row holds the hash of a secret, never the secret

api_keys = Table(
    "api_keys",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),  # reader | writer | curator | admin
    json("hardware", default="[]"),  # ids; empty: not restricted
    Column("secret_sha256", String, nullable=False, unique=True),
    when(),
    when("expires_at", nullable=True),
    when("revoked_at", nullable=True),
    when("last_used_at", nullable=True),
)

key_sessions = Table(
    "key_sessions",
    metadata,
    Column("secret_sha256", String, primary_key=True),
    ref("key_id", "api_keys.id"),
    when(),
    when("expires_at"),
)
