"""Which chips are built in: those with a description in the folder of the built-in knowledge."""

from __future__ import annotations

from pathlib import Path


def is_shipped(hardware_id: str, knowledge_dir: Path) -> bool:
    """Whether every start registers this chip."""
    return (knowledge_dir / "hardware" / hardware_id / "hardware.toml").is_file()
