"""The skill library: list, decide, change, export and import.

Measuring a skill takes minutes of the whole machine and is only a command (`kernlore skills
verify`); uploaded skills are not run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import MaxLen, MinLen

from api.operations import Download, Files, listed, operation
from api.operations.bodies import Actor, Reason, SkillBody
from kb.catalog.skills.reading import SkillEvent
from kb.errors import InvalidRequest, PayloadTooLarge
from kb.plain import Doc
from skills.format.skillfile import MAX_BYTES, packed, placed, unpacked
from skills.lifecycle import Wanted, change_state, merge, narrow_by_hand
from skills.skill_library import Imported, Revision, SkillDetail, SkillSummary
from skills.uses import ScopePart

if TYPE_CHECKING:
    from api.services import Services

declared = partial(operation, tag="skills")


@dataclass(frozen=True)
class ListedSkills:
    """Skills by name, or best first."""

    skills: Sequence[SkillSummary]


@dataclass(frozen=True)
class ChangedSkill:
    """A skill after a decision, with the new entry of its history."""

    name: str
    state: str
    event: SkillEvent
    warnings: Annotated[
        Sequence[str], Doc("Doubts about the scopes of a skill that is now active.")
    ]


@dataclass(frozen=True)
class SkillHistory:
    """The history of a skill, oldest first."""

    name: str
    events: Sequence[SkillEvent]


@declared("GET /skills", "List skills")
def list_skills(
    services: Services,
    state: Annotated[
        str | None, Doc("Only skills in this state, like active; or in several: a,b.")
    ] = None,
    tier: Annotated[str | None, Doc("Only skills of this tier: curated or learned.")] = None,
    hardware: Annotated[str | None, Doc("Only skills that hold for this hardware.")] = None,
    signal: Annotated[str | None, Doc("Only skills about this signal.")] = None,
    language: Annotated[
        str | None, Doc("Only skills for kernels in this language, or in any.")
    ] = None,
    effect: Annotated[
        str | None,
        Doc("Only skills with this measured effect: helps, no effect, harms, untested; or a,b."),
    ] = None,
    order: Annotated[
        str, Doc("`name`; or `effect`: the largest certain gain first, untested skills last.")
    ] = "name",
    q: Annotated[str | None, Doc("Words of the name, text, operators or signals.")] = None,
) -> ListedSkills:
    """Skills by name; with `q`, those first that contain most of its words."""
    return ListedSkills(
        services.skills.list(
            states=listed(state),
            tier=tier,
            hardware=hardware,
            signal=signal,
            language=language,
            effect=effect,
            order=order,
            words=q,
            access_scope=services.access,
        )
    )


@declared("GET /skills/{name}", "Show one skill")
def show_skill(services: Services, name: str) -> SkillDetail:
    """Its text, precondition, moves, recipe, sources, measurements and history."""
    return services.skills.show(name, access_scope=services.access)


@declared(
    "PATCH /skills/{name}",
    "Approve, quarantine, retire or restore a skill",
    role="curator",
    body=("SkillPatch", "The new state of a skill, the person who decides, and the reason."),
)
def change_skill(
    services: Services,
    name: str,
    state: Annotated[
        Wanted,
        Doc(
            "`restored` brings back a retired or quarantined skill, in the state that its"
            " measurements allow."
        ),
    ],
    actor: Annotated[Actor, Doc("Who decides.")],
    reason: Annotated[Reason, Doc("Reason for the skill's history.")],
    force: Annotated[bool, Doc("Approve although no trial supports it.")] = False,
) -> ChangedSkill:
    """A learned skill can be approved once trials support it, or with `force`, which its history
    records. An approved revision takes the place of the skill that it revises, whose history the
    entry is then in. The answer has the new entry of the history, and `warnings` about the scopes
    of a skill that is active now."""
    access = services.access
    event = change_state(
        services.catalog, name, state, actor=actor, reason=reason, force=force, access_scope=access
    )
    warnings = services.skills.warnings(name, event, access_scope=access)
    return ChangedSkill(name, event.to_state or state, event, warnings)


@declared(
    "POST /skills/{name}/revisions",
    "Change the text or precondition of a skill",
    role="writer",
    status=201,
    responses={201: "Stored as a candidate."},
    body=(
        "RevisionBody",
        "Changes of a skill, their author and their reason. Parts that are left out stay.",
    ),
)
def revise_skill(
    services: Services,
    name: str,
    description: Annotated[
        Annotated[str, MinLen(1), MaxLen(1024)] | None, Doc("What it does, and when to use it.")
    ] = None,
    predicate: Annotated[
        Annotated[str, MaxLen(4000)] | None, Doc("Its precondition; empty for none.")
    ] = None,
    body: Annotated[
        Annotated[str, MinLen(1), MaxLen(100_000)] | None,
        Doc("Its text in Markdown, below the front matter."),
    ] = None,
    *,
    actor: Annotated[Actor, Doc("Who changes it.")],
    reason: Annotated[Reason, Doc("Reason for the skill's history.")],
) -> Imported:
    """An active skill stays unchanged; the new text is stored as a candidate, which replaces it
    once it is verified or approved. `name` in the answer is that of the candidate."""
    if description is None and predicate is None and body is None:
        raise InvalidRequest("nothing to change", hint="Give description, predicate or body.")
    revision = Revision(description, predicate, body)
    return services.skills.revise(
        name, revision, actor=actor, reason=reason, access_scope=services.access
    )


@declared(
    "POST /skills/{name}/narrow",
    "Leave a part out of a skill's scope",
    role="curator",
    body=("NarrowBody", "The part in which a skill is not offered any more, who decides, and why."),
)
def narrow_skill(
    services: Services,
    name: str,
    key: Annotated[str, Doc("A quantity or property, such as row_length, op or dtype.")],
    actor: Annotated[Actor, Doc("Who decides.")],
    reason: Annotated[Reason, Doc("Reason for the skill's history.")],
    value: Annotated[str | None, Doc("The part where it is this word.")] = None,
    below: Annotated[float | None, Doc("The part below this number.")] = None,
    at_least: Annotated[float | None, Doc("The part from this number on.")] = None,
) -> ChangedSkill:
    """Exactly one of `value`, `below` and `at_least`. The skill's text, state and measurements
    stay. A shipped skill stays narrow until another text of it ships."""
    event = narrow_by_hand(
        services.catalog,
        name,
        ScopePart(key, value or None, below, at_least),
        actor=actor,
        reason=reason,
        access_scope=services.access,
    )
    return ChangedSkill(name, event.to_state or "", event, ())


@declared(
    "POST /skills/{name}/merge",
    "Merge a skill into another one",
    role="curator",
    body=("MergeBody", "The skill that remains, who decides, and the reason."),
)
def merge_skill(
    services: Services,
    name: str,
    into: Annotated[str, Doc("The skill that remains.")],
    actor: Annotated[Actor, Doc("Who decides.")],
    reason: Annotated[Reason, Doc("Reason for the history of both.")],
) -> ChangedSkill:
    """The merged skill is retired, and its measurements are listed with those of the other one.
    `GET /skills/{name}` lists skills that say nearly the same in `alike`."""
    access = services.access
    event = merge(services.catalog, name, into, actor=actor, reason=reason, access_scope=access)
    return ChangedSkill(name, event.to_state or "", event, ())


@declared("GET /skills/{name}/history", "Show the history of a skill, oldest first")
def show_history(services: Services, name: str) -> SkillHistory:
    """Every change of its text and state: when, who and why."""
    return SkillHistory(name, show_skill(services, name).events)


@declared(
    "GET /skills/{name}/export", "Download a skill's folder as a zip", produces=("application/zip",)
)
def export_skill(services: Services, name: str) -> Download:
    """In the open SKILL.md format, without scripts."""
    with tempfile.TemporaryDirectory(prefix="kernlore-export-") as folder:
        (written,) = services.skills.export(Path(folder), [name], access_scope=services.access)
        data = packed(written)
    headers = {"content-disposition": f'attachment; filename="{written.name}.zip"'}
    return Download(data, "application/zip", headers)


def _status_of(imported: Imported) -> int:
    return 200 if imported.outcome == "unchanged" else 201


imported = partial(
    declared,
    "POST /skills",
    "Import a skill as a candidate",
    role="writer",
    upload=True,
    status=201,
    status_of=_status_of,
    responses={200: "The same text is stored already.", 201: "Imported as a candidate."},
)


@imported()
def import_zip(
    services: Services,
    file: Annotated[Files, Doc("A zip of the skill's folder."), MaxLen(1)],
    actor: Annotated[Actor, Doc("Who sends it.")] = "http",
) -> Imported:
    if len(file) != 1:
        raise InvalidRequest(
            "more than one file",
            hint="Send one zip in the field `file`, and no other field but `actor`.",
        )
    data = file[0].file.read(MAX_BYTES + 1)
    if file[0].oversized or len(data) > MAX_BYTES:
        raise PayloadTooLarge(
            f"the zip is over the limit of {MAX_BYTES:,} bytes",
            hint="Shorten it: a skill is one page.",
            details={"limit": MAX_BYTES},
        )
    with unpacked(data) as path:
        return services.skills.import_folder(path, actor=actor, access_scope=services.access)


@imported(
    form=import_zip,
    example={
        "name": "wait-for-talon",
        "files": {
            "SKILL.md": "---\nname: wait-for-talon\n"
            "description: Use when a kernel waits for loads.\n"
            'metadata:\n  kb.hardware: "h100"\n  kb.languages: "cuda"\n'
            '  kb.signals: "memory_latency"\n---\n## Steps\n\n1. Begin the next load sooner.\n'
        },
        "actor": "ann",
    },
)
def import_skill(services: Services, skill: SkillBody) -> Imported:
    """Claims of the folder about state and evidence are ignored, and its scripts are left out."""
    with placed(skill.name, skill.files) as path:
        return services.skills.import_folder(path, actor=skill.actor, access_scope=services.access)
