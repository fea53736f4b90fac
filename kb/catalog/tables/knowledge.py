"""Documents and what is read from them.

A document is a logical manual; a version is one content hash of it read by one pipeline. Sections
and passages belong to a version. What a section or passage is about (hardware, language) is
many-to-many: the document's scope unless the section overrides it; `passage_hardware` holds the
effective answer, with the row "any" for no restriction."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from kb.catalog.dialect import Integer
from kb.catalog.tables._columns import id_column, json, metadata, ref, scope, when

documents = Table(
    "documents",
    metadata,
    id_column(),
    Column("source_key", String, nullable=False),
    Column("title", String, nullable=False),
    Column("category", String, nullable=False),
    Column("origin", String, nullable=False),  # builtin | upload
    Column("current_version_id", String, nullable=True),
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
    Column("seq", Integer, primary_key=True, autoincrement=True),  # rowid of the lexical index
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
    # of the current version of a live document; kept equal to the lexical index's rows
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

moves = Table(
    "moves",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column(
        "document_id",
        String,
        ForeignKey("documents.id", ondelete="CASCADE"),
        nullable=True,
        index=True,
    ),
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

recipes = Table(
    "recipes",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("language", String, nullable=False),
    Column(
        "document_id",
        String,
        ForeignKey("documents.id", ondelete="CASCADE"),
        nullable=True,
        index=True,
    ),
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
    Column("document_id", String, ForeignKey("documents.id", ondelete="CASCADE"), index=True),
    Column("version_id", String, ForeignKey("document_versions.id", ondelete="CASCADE")),
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

__all__ = [
    "corrections",
    "document_scopes",
    "document_versions",
    "documents",
    "embeddings",
    "moves",
    "passage_hardware",
    "passage_tags",
    "passages",
    "recipes",
    "samples",
    "sections",
    "symbols",
]
