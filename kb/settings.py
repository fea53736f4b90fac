"""All settings of the product, with defaults and help. Environment prefix `KERNLORE_`.

Defaults are finite and local: loopback only, bounded sizes, no key needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kb.addresses import listed_names
from kb.errors import nearest

MIB = 1024 * 1024
PREFIX = "KERNLORE_"
# Variables that other code reads: the client, containers of candidates, modules and runners.
OTHER_VARIABLES = frozenset(
    {
        "KERNLORE_KEY",
        "KERNLORE_URL",
        "KERNLORE_CONTAINER_ENGINE",
        "KERNLORE_CONTAINER_OPTIONS",
        "KERNLORE_KERNEL_CACHE",
        "KERNLORE_RUNNER",
        "KERNLORE_TIMING",
    }
)
# Set by Kubernetes for a service named `kernlore`, and by tests.
_FOREIGN = re.compile(r"KERNLORE_(?:SERVICE_|PORT_\d|TEST_)")


class Settings(BaseSettings):
    """Values come from the environment (`KERNLORE_PORT=9000`) or the caller; unknown names are
    rejected."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    # Locations
    data_dir: Path = Field(
        Path("data"), description="Folder of the catalog, index, blobs and exported models."
    )
    knowledge_dir: Path = Field(
        Path(__file__).resolve().parent.parent / "hw_manuals",
        description="Folder of the built-in knowledge. A service does not start if it is missing"
        " or contains no document.",
    )
    skills_dir: Path = Field(
        Path(__file__).resolve().parent.parent / "skills" / "library",
        description="Folder of the built-in skills.",
    )
    prepared_dir: Path | None = Field(
        None,
        description="Folder of the prepared store, which `kernlore knowledge prepare` makes and new"
        " data directories are copied from. Default: share/kernlore in the Python environment.",
    )
    catalog: str | None = Field(
        None,
        repr=False,
        description="URL of the SQL catalog on a server:"
        " postgresql+psycopg://USER:PASSWORD@HOST/DATABASE. Default: SQLite in the data directory.",
    )
    chroma_url: str | None = Field(
        None,
        repr=False,
        description="URL of a Chroma server: http://HOST:8000, with USER:PASSWORD@ and"
        " ?tenant=T&database=D where needed. Default: Chroma inside the service's process.",
    )
    blob_url: str | None = Field(
        None,
        description="URL of the store of uploaded files and artifacts, such as s3://BUCKET/PREFIX;"
        " credentials are those of AWS_ACCESS_KEY_ID and so on. Default: DATA_DIR/blobs.",
    )

    # The service
    host: str = Field("127.0.0.1", description="Address to listen on.")
    allowed_hosts: str = Field(
        "",
        description="Additional host names of the service, separated by commas, such as that of a"
        " proxy; `*.example.com` matches every subdomain. Requests to other names than these and"
        " its own address are refused.",
    )
    port: int = Field(8321, ge=1, le=65535, description="Port to listen on.")
    evaluate_over_http: bool = Field(
        False,
        description="Permit callers on other machines to start evaluations and runs. Their code"
        " then runs on this machine.",
    )

    # Embedding
    embedder: str = Field(
        "all-MiniLM-L6-v2",
        description="Embedding model: name or folder of a sentence-transformers model.",
    )

    # Limits
    max_file_bytes: int = Field(128 * MIB, ge=1, description="Largest uploaded file, in bytes.")
    max_files_per_upload: int = Field(
        2000, ge=1, description="Largest number of files in an upload request."
    )
    max_log_bytes: int = Field(8 * MIB, ge=1, description="Largest posted log, in bytes.")
    max_body_bytes: int = Field(16 * MIB, ge=1, description="Largest JSON body, in bytes.")
    body_seconds: float = Field(
        30.0,
        gt=0,
        description="Longest time in which the body of a request arrives, in seconds; a second more"
        " for every 16 KiB.",
    )
    parse_seconds: float = Field(
        300.0, gt=0, description="Longest time for parsing one file, in seconds."
    )
    parse_memory_bytes: int = Field(
        3072 * MIB, ge=1, description="Most memory for parsing one file, in bytes."
    )
    max_unpacked_bytes: int = Field(
        256 * MIB,
        ge=1,
        description="Most bytes that the archive of one DOCX, XLSX, PPTX, EPUB or ODT file may"
        " unpack to.",
    )
    max_document_parts: int = Field(
        1_000_000, ge=1, description="Most paragraphs and table cells of one document."
    )
    max_passages: int = Field(
        100_000,
        ge=1,
        description="Most passages, and most sections, of one document; its text may have 800"
        " characters for each.",
    )
    lease_seconds: float = Field(
        60.0,
        gt=0,
        description="Seconds without a renewal by its worker after which a job or a trajectory is"
        " queued again.",
    )

    # Answers
    default_k: int = Field(
        8, ge=1, le=200, description="Excerpts in an answer, if the request does not give a number."
    )
    max_k: int = Field(200, ge=1, description="Largest number of excerpts that a request may set.")
    default_max_tokens: int = Field(
        3000,
        ge=1,
        description="Maximum tokens of `context` in an answer, if the request does not give one;"
        " twice as many for the task write.",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that answer retrievals; 1: the service alone. All map one snapshot.",
    )
    retrievals_at_once: int = Field(
        2,
        ge=1,
        description="Retrievals that a service computes at the same time, an even share in each of"
        " its processes and at least one; others wait.",
    )
    retrievals_waiting: int = Field(
        128, ge=1, description="Retrievals that may wait; more are refused with 503."
    )
    requests_per_minute: int = Field(
        3000,
        ge=0,
        description="Requests per minute of a key, or of an address if no keys exist; 0:"
        " unlimited. Without keys there is no limit on loopback.",
    )
    uploads_per_minute: int = Field(600, ge=0, description="Like requests_per_minute, for uploads.")
    toolchain_checks: bool = Field(
        True,
        description="Whether a service checks the knowledge when a tool of its machine has a new"
        " version.",
    )
    skills_withheld_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of skills, 0 to 1, withheld from the requests of a run, for the"
        " comparison by `kernlore skills lift`.",
    )
    skills_unused_retrievals: int = Field(
        5000,
        ge=1,
        description="A learned skill that was not used in this many retrievals is retired.",
    )
    log_level: str = Field("info", description="Log level: debug, info, warning or error.")

    @property
    def models_dir(self) -> Path:
        """Folder of the exported query model."""
        return self.data_dir / "models"

    @field_validator("allowed_hosts")
    @classmethod
    def _names(cls, value: str) -> str:
        listed_names(value)
        return value


def unknown_settings(environment: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each variable with the prefix that is not a setting, with the nearest name."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    warnings = []
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX) or name.upper() in known or _FOREIGN.match(name):
            continue
        near = nearest(name.upper(), known, count=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        warnings.append(f"{name} is set but is not a setting{meant}")
    return tuple(warnings)


def product_version() -> str:
    """The installed version of the product, or `0+source` in a source folder."""
    try:
        return version("kernlore")
    except PackageNotFoundError:
        return "0+source"
