"""Every knob of the product in one table: name, default, one line of help. Environment prefix
`KERNLORE_`.

Defaults are finite and local: loopback only, bounded sizes, no key needed.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MIB = 1024 * 1024


class Settings(BaseSettings):
    """Values come from the environment (`KERNLORE_PORT=9000`) or from the caller; unknown names are
    refused.
    """

    model_config = SettingsConfigDict(env_prefix="KERNLORE_", extra="forbid", frozen=True)

    # Where things are
    data_dir: Path = Field(Path("data"), description="Catalog, index, blobs and exported models.")
    knowledge_dir: Path = Field(
        Path(__file__).resolve().parent.parent / "hw_manuals",
        description="The built-in knowledge.",
    )
    skills_dir: Path = Field(
        Path(__file__).resolve().parent.parent / "skills" / "library",
        description="The built-in skills.",
    )
    chroma_url: str | None = Field(None, description="A Chroma server; default is embedded.")
    blob_url: str | None = Field(
        None, description="fsspec URL of the blob store; default is DATA_DIR/blobs."
    )

    # The service
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8321, ge=1, le=65535, description="Port to listen on.")
    evaluate_over_http: bool = Field(
        False,
        description="Evaluate candidates for callers of other machines too; that runs their code.",
    )

    # Embedding
    embedder: str = Field(
        "all-MiniLM-L6-v2", description="A sentence-transformers model by name or folder."
    )

    # Limits
    max_file_bytes: int = Field(128 * MIB, ge=1, description="Largest uploaded file.")
    max_files_per_upload: int = Field(2000, ge=1, description="Files in one upload request.")
    max_log_bytes: int = Field(8 * MIB, ge=1, description="Largest posted log.")
    max_body_bytes: int = Field(16 * MIB, ge=1, description="Largest JSON body.")
    parse_seconds: float = Field(300.0, gt=0, description="Wall clock for parsing one file.")
    parse_memory_bytes: int = Field(3072 * MIB, ge=1, description="Memory for parsing one file.")
    lease_seconds: float = Field(
        60.0, gt=0, description="A job whose worker is silent this long has failed."
    )

    # Answers
    default_k: int = Field(20, ge=1, le=200, description="Excerpts in an answer.")
    max_k: int = Field(200, ge=1, description="Most excerpts a request may ask for.")
    default_max_tokens: int = Field(6000, ge=1, description="Token budget of the packed context.")
    skills_withheld_share: float = Field(
        0.1, ge=0, le=1, description="Share of skills withheld from a run's requests, for lift."
    )
    skills_unused_retrievals: int = Field(
        5000, ge=1, description="A learned skill unused in so many retrievals is retired."
    )
    log_level: str = Field("info", description="debug, info, warning or error.")


def product_version() -> str:
    """The installed version of the product, or `0+source` in a source folder."""
    try:
        return version("kernlore")
    except PackageNotFoundError:
        return "0+source"
