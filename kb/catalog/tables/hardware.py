"""Hardware (what knowledge is about) and devices (what measurements were taken on)."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, String, Table, Text, UniqueConstraint

from kb.catalog.dialect import Integer
from kb.catalog.tables._columns import id_column, json, metadata, ref, scope, when

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
    Column("subject", String, nullable=True),  # what names the subject: a header, or a chip
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
