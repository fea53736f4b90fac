"""The skill library, to read."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.http.dependencies import Access, Parts
from api.http.plain import plain

router = APIRouter(tags=["skills"])


@router.get("/skills", summary="Every skill")
def list_skills(parts: Parts, access: Access) -> dict[str, Any]:
    return {"skills": plain(parts.skills.list(access_scope=access))}


@router.get("/skills/{name}", summary="One skill")
def show_skill(name: str, parts: Parts, access: Access) -> JSONResponse:
    return JSONResponse(plain(parts.skills.show(name, access_scope=access)))
