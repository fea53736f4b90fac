"""Whether a folder holds built-in knowledge at all.

A folder that is not there, such as an unmounted volume or a mistyped name, looks like one from
which every document was taken away. Nothing is loaded from it then, and nothing removed."""

from __future__ import annotations

from pathlib import Path

from kb.errors import InvalidKnowledge

_DOCUMENTS = ("constraints/*.md", "guidance/*.md", "hardware/*/*.md", "samples/*/samples.toml")


def check_knowledge_folder(folder: Path) -> None:
    """Raise InvalidKnowledge where the folder does not exist or holds no document."""
    if not folder.is_dir():
        problem = "does not exist" if not folder.exists() else "is not a folder"
    elif any(any(folder.glob(pattern)) for pattern in _DOCUMENTS):
        return
    else:
        problem = "holds no document"
    raise InvalidKnowledge(
        f"the folder of the built-in knowledge, {folder.absolute()}, {problem}",
        hint="Correct KERNLORE_KNOWLEDGE_DIR, or mount what it names; without it, what ships is"
        " loaded. What was loaded before is as it was.",
    )
