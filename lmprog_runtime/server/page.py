"""The web page at `/`: static files of this package, which ask for nothing outside this server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

FOLDER = Path(__file__).parent / "page_files"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/page/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    # no request of the page leaves this server, and no other site can put the page in a frame
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_routes(app: FastAPI) -> None:
    for path, (name, media_type) in FILES.items():
        app.get(path, include_in_schema=False)(_sender(FOLDER / name, media_type))


def _sender(file: Path, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(file.read_bytes(), media_type=media_type, headers=_HEADERS)

    return send
