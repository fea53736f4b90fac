"""The skill library: read, approve and retire, export as a zip, import as a candidate.

Measuring a skill takes minutes of the whole machine and stays with the command line (`kernlore
skills verify`); nothing that comes in here is run.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from api.bodies import Actor, load_json, validated
from api.http.bodies import is_json, json_body, media_type, read_json_body, signed, too_large
from api.http.dependencies import Access, Parts, api_router
from api.http.multipart import ACTOR as SENT_WITH
from api.http.multipart import read_form
from api.http.openapi import json_request
from api.services import Services
from api.skill_bodies import RevisionBody, SkillBody, SkillPatch
from kb.errors import InvalidRequest
from kb.plain import plain
from kb.scope import AccessScope
from skills.format.skillfile import MAX_BYTES, packed, placed, unpacked
from skills.lifecycle import change_state
from skills.skill_library import Imported, Revision, SkillDetail

router = api_router("skills")
ACTOR = "http"


def _import_request() -> dict[str, Any]:
    """A skill as JSON, or as a zip in a form."""
    extra = json_request(SkillBody)
    extra["requestBody"]["content"]["multipart/form-data"] = {
        "schema": {
            "type": "object",
            "required": ["file"],
            "properties": {
                "file": {
                    "type": "string",
                    "format": "binary",
                    "description": "A zip of the skill's folder.",
                },
                "actor": {"type": "string", "description": "Who sends it."},
            },
        }
    }
    return extra


@router.get("/skills", summary="List skills")
def list_skills(
    parts: Parts,
    access: Access,
    state: Annotated[
        str | None, Query(description="Only skills in this state, like active; or in several: a,b.")
    ] = None,
    tier: Annotated[
        str | None, Query(description="Only skills of this tier: curated or learned.")
    ] = None,
    hardware: Annotated[
        str | None, Query(description="Only skills that hold for this hardware.")
    ] = None,
    signal: Annotated[str | None, Query(description="Only skills about this signal.")] = None,
    language: Annotated[
        str | None, Query(description="Only skills for kernels in this language, or in any.")
    ] = None,
    q: Annotated[
        str | None, Query(description="Words of the name, text, operators or signals.")
    ] = None,
) -> dict[str, Any]:
    """Skills by name; with `q`, those first that contain most of its words."""
    skills = parts.skills.list(
        states=_listed(state),
        tier=tier,
        hardware=hardware,
        signal=signal,
        language=language,
        words=q,
        access_scope=access,
    )
    return {"skills": plain(skills)}


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


@router.get(
    "/skills/{name}",
    summary="Show one skill",
    responses={200: {"model": SkillDetail, "description": "The skill with its evidence."}},
)
def show_skill(name: str, parts: Parts, access: Access) -> JSONResponse:
    """Its text, precondition, moves, recipe, sources, measurements and history."""
    return JSONResponse(plain(parts.skills.show(name, access_scope=access)))


@router.patch(
    "/skills/{name}",
    summary="Approve, quarantine, retire or restore a skill",
    openapi_extra=json_request(SkillPatch),
)
def patch_skill(
    name: str,
    parts: Parts,
    access: Access,
    body: Annotated[SkillPatch, Depends(json_body(SkillPatch))],
) -> dict[str, Any]:
    """A learned skill can be approved once trials support it, or with `force`, which its history
    records. An approved revision takes the place of the skill that it revises, whose history the
    entry is then in. The answer has the new entry of the history, and `warnings` about the scopes
    of a skill that is active now."""
    event = change_state(
        parts.catalog,
        name,
        body.state,
        actor=body.actor,
        reason=body.reason,
        force=body.force,
        access_scope=access,
    )
    warnings = parts.skills.warnings(name, event, access_scope=access)
    return {"name": name, "state": event.to_state, "event": plain(event), "warnings": [*warnings]}


@router.post(
    "/skills/{name}/revisions",
    summary="Change the text or precondition of a skill",
    status_code=201,
    responses={201: {"model": Imported, "description": "Stored as a candidate."}},
    openapi_extra=json_request(RevisionBody),
)
def revise(
    name: str,
    parts: Parts,
    access: Access,
    body: Annotated[RevisionBody, Depends(json_body(RevisionBody))],
) -> JSONResponse:
    """A skill in use stays as it is; the new text is a candidate beside it, and takes its place
    once it is verified or approved. `name` in the answer is that candidate's."""
    revision = Revision(body.description, body.predicate, body.body)
    stored = parts.skills.revise(
        name, revision, actor=body.actor, reason=body.reason, access_scope=access
    )
    return JSONResponse(plain(stored), 201)


@router.get("/skills/{name}/history", summary="Show the history of a skill, oldest first")
def history(name: str, parts: Parts, access: Access) -> dict[str, Any]:
    """Every change of its text and state: when, who and why."""
    return {"name": name, "events": plain(parts.skills.show(name, access_scope=access).events)}


@router.get(
    "/skills/{name}/export",
    summary="Download a skill's folder as a zip",
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}}},
)
def export(name: str, parts: Parts, access: Access) -> Response:
    """In the open SKILL.md format, without scripts."""
    with tempfile.TemporaryDirectory(prefix="kernlore-export-") as folder:
        (written,) = parts.skills.export(Path(folder), [name], access_scope=access)
        data = packed(written)
    headers = {"content-disposition": f'attachment; filename="{written.name}.zip"'}
    return Response(data, media_type="application/zip", headers=headers)


class _Sender(BaseModel):
    """What stands beside the zip of a skill."""

    actor: Actor


@dataclass(frozen=True)
class _Folder:
    """A skill's folder as it was sent: zipped, or as texts."""

    zipped: bytes = b""
    actor: str = ACTOR
    texts: SkillBody | None = None


async def _folder(request: Request) -> _Folder:
    if is_json(media_type(request)):
        texts = validated(SkillBody, load_json(await read_json_body(request)))
        return _Folder(actor=signed(request, texts.actor), texts=texts)
    form = await read_form(request, SENT_WITH)
    try:
        if len(form.files) != 1:
            raise InvalidRequest(
                "a skill is sent alone",
                hint="Send one zip in the field `file`, and no other field but `actor`.",
            )
        (file,) = form.files
        data = file.file.read(MAX_BYTES + 1)
        if file.oversized or len(data) > MAX_BYTES:
            raise too_large("zip", MAX_BYTES, "nothing: a skill is one page")
        actor = validated(_Sender, {"actor": form.text("actor") or ACTOR}).actor
        return _Folder(data, signed(request, actor))
    finally:
        for file in form.files:
            file.close()


@router.post(
    "/skills",
    summary="Import a skill as a candidate",
    status_code=201,
    responses={
        200: {"model": Imported, "description": "The same text is stored already."},
        201: {"model": Imported, "description": "Imported as a candidate."},
    },
    openapi_extra=_import_request(),
)
def add_skill(
    parts: Parts, access: Access, folder: Annotated[_Folder, Depends(_folder)]
) -> JSONResponse:
    """What the folder claims about state and evidence is ignored, and its scripts are left out."""
    if folder.texts is None:
        with unpacked(folder.zipped) as path:
            return _imported(parts, path, folder.actor, access)
    with placed(folder.texts.name, folder.texts.files) as path:
        return _imported(parts, path, folder.actor, access)


def _imported(parts: Services, folder: Path, actor: str, access: AccessScope) -> JSONResponse:
    imported = parts.skills.import_folder(folder, actor=actor, access_scope=access)
    return JSONResponse(plain(imported), 200 if imported.outcome == "unchanged" else 201)
