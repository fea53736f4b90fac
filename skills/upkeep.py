"""What the skill library needs before a search that uses it: call it, then `optimize`."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.search.runs.optimize import places_for
from retrieval.knowledge_base import KnowledgeBase
from skills.lifecycle import note_toolchain
from skills.observation import retire_unused
from skills.skill_library import SkillLibrary


def prepare_library(
    base: KnowledgeBase, hardware: str, language: str | None, log: Callable[[str], None]
) -> None:
    """Store this version's built-in skills and update the states of learned ones.

    Skills measured with another toolchain become suspect; skills that many answers showed and
    nobody used are retired. `log` gets one sentence for each change. Raises UnknownHardware, and
    Unavailable where nothing can be run on `hardware` here.
    """
    SkillLibrary(base.catalog).sync_builtin(base.settings.skills_dir)
    for place in places_for(base, hardware, language).values():
        toolchain = f"{place.toolchain.name} {place.toolchain.version()}"
        for name in note_toolchain(base.catalog, place.target.hardware, toolchain):
            log(f"{name} was measured with another toolchain: `kernlore skills verify`")
    unused = base.settings.skills_unused_retrievals
    for name in retire_unused(base.catalog, retrievals=unused):
        log(f"{name} is retired: {unused} answers made no use of it")
