"""The skill commands that a running service can carry out too: each over HTTP, or as the route's
own function in this process, so that both answer alike.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from api.cli.backends.contract import Json, Target
from api.cli.backends.local import LocalTarget
from api.cli.backends.remote import RemoteTarget
from kb.catalog.skills import STATES, TIERS
from kb.errors import InvalidKnowledge, InvalidRequest, Unavailable
from kb.plain import plain
from kb.scope import ALL_ACCESS
from skills.format.folders import packed, unpacked
from skills.format.skillfile import SKILL_MD, read_skill, skill_folders, write_skill


def found(target: Target, **filters: str | None) -> list[Json]:
    """Skills that fit: state, tier, hardware, signal, q."""
    given = {name: value for name, value in filters.items() if value is not None}
    if not given:
        return target.skills()
    if isinstance(target, RemoteTarget):
        return list(target.call("GET", "/skills", params=given)["skills"])
    if given.keys() <= {"state", "tier"}:  # without the parts that know hardware and signals
        return _of_state(target.skills(), given.get("state"), given.get("tier"))
    from api.http.routes import skills

    return list(skills.list_skills(_local(target).services, ALL_ACCESS, **given)["skills"])


def _of_state(skills: Sequence[Json], state: str | None, tier: str | None) -> list[Json]:
    wanted = [part.strip() for part in state.split(",")] if state is not None else list(STATES)
    odd = [*sorted({*wanted} - {*STATES}), *({tier} - {None, *TIERS})]
    if odd:
        raise InvalidRequest(
            f"no such state or tier: {odd[0]}",
            hint=f"States: {', '.join(STATES)}. Tiers: {', '.join(TIERS)}.",
        )
    return [s for s in skills if s["state"] in wanted and tier in (None, s["tier"])]


def changed(target: Target, name: str, patch: Json) -> Json:
    """What PATCH /skills/{name} answers."""
    if isinstance(target, RemoteTarget):
        told: Json = target.call("PATCH", f"/skills/{quote(name, safe='')}", json=dict(patch))
        return told
    from api.http.bodies import validated
    from api.http.routes import skills

    body = validated(skills.SkillPatch, dict(patch))
    return skills.patch_skill(name, _stocked(target).services, ALL_ACCESS, body)


def history(target: Target, name: str) -> list[Json]:
    if isinstance(target, RemoteTarget):
        return list(target.call("GET", f"/skills/{quote(name, safe='')}/history")["events"])
    return list(target.skill(name)["events"])


def exported(target: Target, names: Sequence[str], parent: Path) -> list[Path]:
    """Folders below `parent`: of the named ones, else of all that are in use."""
    if not isinstance(target, RemoteTarget):
        return list(_stocked(target).services.skills.export(parent, names or None))
    chosen = names or [
        skill["name"]
        for skill in target.skills()
        if skill["state"] in ("candidate", "active", "suspect")
    ]
    return [_from_service(target, name, parent) for name in chosen]


def taken_in(target: Target, folder: Path, actor: str) -> list[Json]:
    """One skill's folder, or every one below it; each lands as a candidate."""
    folders = [folder] if (folder / SKILL_MD).is_file() else skill_folders(folder)
    if not folders:
        raise InvalidKnowledge(
            f"there is no {SKILL_MD} in {folder} or right below it",
            hint=f"A skill is a folder with {SKILL_MD}.",
        )
    return [_one_in(target, one, actor) for one in folders]


def _one_in(target: Target, folder: Path, actor: str) -> Json:
    read_skill(folder)  # what is wrong with it, with the names of this machine
    if isinstance(target, RemoteTarget):
        from retrieval.client import Part

        sent = Part("file", packed(folder.resolve()), f"{folder.resolve().name}.zip")
        told: Json = target.call("POST", "/skills", files=[sent])
        return told
    taken: Json = plain(_local(target).services.skills.import_folder(folder, actor=actor))
    return taken


def _from_service(target: RemoteTarget, name: str, parent: Path) -> Path:
    import httpx

    target.skill(name)  # an unknown one is refused in the service's own words
    answer = httpx.get(f"{target.name.rstrip('/')}/skills/{quote(name, safe='')}/export")
    if not answer.is_success or not zipfile.is_zipfile(io.BytesIO(answer.content)):
        raise Unavailable(
            f"the service answered {answer.status_code} instead of a zip of {name}",
            hint="Check that the URL is Kernlore's and that both are of one version.",
        )
    with unpacked(answer.content) as folder:
        return write_skill(read_skill(folder), parent)


def _local(target: Target) -> LocalTarget:
    assert isinstance(target, LocalTarget)
    return target


def _stocked(target: Target) -> LocalTarget:
    """With the shipped skills in the library, which an empty one is filled with."""
    target.skills()
    return _local(target)
