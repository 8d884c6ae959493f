# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compressed answers of web servers, packed beside the event loop: an ASGI middleware and one for aiohttp.

    app = memlift.web.Compress(app)                         # any ASGI application
    app.add_middleware(memlift.web.Compress)                # Starlette, FastAPI

    app = aiohttp.web.Application(middlewares=[memlift.web.aiohttp_compress()])

- **Encodings** zstd and gzip, as the client prefers; between equals the first of `encodings`
- **Loop** what would take about a millisecond or longer is packed by a worker thread, without the GIL; other requests go on meanwhile. gzip gives its core up
  after each 128 KiB: on a core of its own the loop would have waited for the end of the thread's time slice, several milliseconds
- **Streams** each piece is sent when it comes: gzip, flushed
- **Left alone** answers that are short, encoded already, partial (206), without a body, marked `no-transform`, or of types that are packed by themselves
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from memlift import transform, zlib

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_Application = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]

ENCODINGS = ("zstd", "gzip")
"""Encodings that are offered, the preferred one first."""

_INLINE_BYTES = 64 * 1024
"""Shorter bodies are packed in the loop: it takes less than a millisecond, and a thread's wake is not free."""

_PIECE_BYTES = 128 * 1024
"""Bytes that a worker packs, in about half a millisecond, before it lets other threads run on its core."""

_PACKED = ("image/", "video/", "audio/", "font/woff", "application/zip", "application/gzip", "application/zstd", "application/x-7z", "application/pdf")
_TEXT_IMAGES = ("image/svg", "image/bmp", "image/x-icon", "image/vnd.microsoft.icon")


def preferred(accepted: str, encodings: Iterable[str] = ENCODINGS) -> str | None:
    """Returns the encoding for a header `Accept-Encoding` (RFC 9110, 12.5.3); None: none that both know.

    The client's weights decide, and between equals the order of `encodings`.
    """
    weights: dict[str, float] = {}
    for item in accepted.lower().split(","):
        name, _, parameters = item.partition(";")
        weight = 1.0
        for parameter in parameters.split(";"):
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        # The first of equal names counts; x-gzip is gzip.
        weights.setdefault({"x-gzip": "gzip"}.get(name.strip(), name.strip()), weight)
    best, best_weight = None, 0.0
    for encoding in encodings:
        weight = weights.get(encoding, weights.get("*", 0.0))
        if weight > best_weight:
            best, best_weight = encoding, weight
    # A client that likes it better as it is gets it so.
    return best if best_weight >= weights.get("identity", 0.0) else None


def _pack(body: bytes, encoding: str, level: int) -> bytes:
    if encoding == "gzip" and len(body) <= _PIECE_BYTES:
        return zlib.compress(body, level, 31)
    if encoding == "gzip":
        packer = zlib.compressobj(level, wbits=31)
        return b"".join([*_pieces(packer, body), packer.flush()])
    return transform.pack(body, "zstd", "fast" if level < 4 else "default" if level < 7 else "small")


def _pieces(packer: Any, body: bytes) -> list[bytes]:
    """Packs a body piece by piece; between two, threads that wait for this core run."""
    parts = []
    with memoryview(body) as view:
        for at in range(0, len(view), _PIECE_BYTES):
            if at:
                os.sched_yield()
            parts.append(packer.compress(view[at : at + _PIECE_BYTES]))
    return parts


async def _packed(body: bytes, encoding: str, level: int) -> bytes:
    if len(body) < _INLINE_BYTES:
        return _pack(body, encoding, level)
    return await _beside(_pack, body, encoding, level)


async def _beside(function: Callable[..., bytes], *arguments: object) -> bytes:
    """Runs a function in a worker thread of whatever loop this is."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        from anyio import to_thread  # trio

        return await to_thread.run_sync(function, *arguments)
    return await loop.run_in_executor(None, function, *arguments)


def _is_left(status: int, headers: Mapping[str, str], size: int | None, minimum: int) -> bool:
    """Returns true if an answer with these headers is sent as it is; header names in lower case."""
    kind = headers.get("content-type", "").lower()
    return (
        status < 200
        or status in (204, 205, 206, 304)
        or headers.get("content-encoding", "identity").lower() != "identity"
        or "content-range" in headers
        or "no-transform" in headers.get("cache-control", "").lower()
        or (size is not None and size < minimum)
        or (kind.startswith(_PACKED) and not kind.startswith(_TEXT_IMAGES))
    )


def _check(minimum_size: int, level: int, encodings: Iterable[str]) -> tuple[str, ...]:
    if minimum_size < 0:
        raise ValueError(f"minimum_size={minimum_size}: give 0 or more bytes")
    if not 1 <= level <= 9:
        raise ValueError(f"level={level}: give 1 (fastest) to 9 (smallest)")
    chosen = tuple(encodings)
    if not chosen or not set(chosen) <= set(ENCODINGS):
        raise ValueError(f"encodings={chosen}: give some of {ENCODINGS}")
    return chosen


class Compress:
    """ASGI middleware: answers are compressed as the client accepts.

    minimum_size: shorter bodies stay as they are, in bytes. level: 1 to 9, as gzip's. encodings: of ENCODINGS, the preferred one first.
    Raises ValueError for others.
    """

    def __init__(self, app: _Application, *, minimum_size: int = 500, level: int = 6, encodings: Iterable[str] = ENCODINGS) -> None:
        self.app = app
        self.minimum_size = minimum_size
        self.level = level
        self.encodings: tuple[str, ...] = _check(minimum_size, level, encodings)

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        values = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"accept-encoding"]
        answer = _Answer(self, send, ",".join(values), scope.get("method", "GET"))
        await self.app(scope, receive, answer.send)


class _Answer:
    """One answer on its way: its start is held back until the first piece of its body tells how long it is."""

    def __init__(self, owner: Compress, send: _Send, accepted: str, method: str) -> None:
        self._owner, self._send, self._accepted, self._method = owner, send, accepted, method
        self._start: _Message | None = None
        self._packer: Any = None
        self._passes = False

    async def send(self, message: _Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._start = message
        elif kind == "http.response.body" and not self._passes:
            await self._body(message)
        else:
            await self._pass_on()
            await self._send(message)

    async def _pass_on(self) -> None:
        """Sends the start as it is."""
        self._passes = True
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)

    async def _body(self, message: _Message) -> None:
        body, more = bytes(message.get("body", b"")), message.get("more_body", False)
        if self._packer is not None:
            await self._send({"type": "http.response.body", "body": await self._piece(body, more), "more_body": more})
            return
        start = self._start
        if start is None:
            self._passes = True
            await self._send(message)
            return
        fields = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in start.get("headers", ())]
        headers = dict(fields)
        size = None if more else len(body)
        if self._method == "HEAD" or _is_left(start["status"], headers, size, self._owner.minimum_size):
            await self._pass_on()
            await self._send(message)
            return
        # A stream is packed by what can be flushed.
        offered = [one for one in self._owner.encodings if one == "gzip"] if more else self._owner.encodings
        encoding = preferred(self._accepted, offered)
        kept = [(name, value) for name, value in start.get("headers", ()) if not encoding or name.lower() not in (b"content-length", b"etag")]
        if "accept-encoding" not in headers.get("vary", "").lower() and headers.get("vary") != "*":
            kept.append((b"vary", b"Accept-Encoding"))
        if encoding:
            kept.append((b"content-encoding", encoding.encode()))
            # Other bytes than those that a strong tag stands for.
            etag = headers.get("etag")
            if etag is not None:
                kept.append((b"etag", (etag if etag.startswith("W/") else f"W/{etag}").encode("latin-1")))
        self._start = None
        if not encoding:
            self._passes = True
            await self._send({**start, "headers": kept})
            await self._send(message)
        elif more:
            self._packer = zlib.compressobj(self._owner.level, wbits=31)
            await self._send({**start, "headers": kept})
            await self._send({"type": "http.response.body", "body": await self._piece(body, more), "more_body": True})
        else:
            packed = await _packed(body, encoding, self._owner.level)
            kept.append((b"content-length", str(len(packed)).encode()))
            await self._send({**start, "headers": kept})
            await self._send({"type": "http.response.body", "body": packed, "more_body": False})

    async def _piece(self, body: bytes, more: bool) -> bytes:
        packer = self._packer

        def pack() -> bytes:
            parts = _pieces(packer, body)
            end = packer.flush(zlib.Z_SYNC_FLUSH if more else zlib.Z_FINISH)
            return b"".join([*parts, end])

        if more and not body:
            return b""
        return pack() if len(body) < _INLINE_BYTES else await _beside(pack)


def aiohttp_compress(*, minimum_size: int = 500, level: int = 6, encodings: Iterable[str] = ENCODINGS) -> Any:
    """Returns a middleware for aiohttp's server: answers that have a body of bytes or text are compressed as the client accepts.

    Arguments are those of Compress. A StreamResponse is left to aiohttp's own `enable_compression`; `aiohttp.set_zlib_backend(memlift.zlib)`
    makes that use memlift's zlib.
    """
    chosen = _check(minimum_size, level, encodings)
    from aiohttp import web

    @web.middleware
    async def compress(request: Any, handler: Any) -> Any:
        response = await handler(request)
        body = getattr(response, "body", None)
        if not isinstance(response, web.Response) or not isinstance(body, (bytes, bytearray)) or response.prepared or request.method == "HEAD":
            return response
        headers = {name.lower(): value for name, value in response.headers.items()}
        if response.compression or _is_left(response.status, headers, len(body), minimum_size):
            return response
        if "accept-encoding" not in headers.get("vary", "").lower() and headers.get("vary") != "*":
            response.headers.add("Vary", "Accept-Encoding")
        encoding = preferred(",".join(request.headers.getall("Accept-Encoding", [])), chosen)
        if encoding:
            response.body = await _packed(bytes(body), encoding, level)
            response.headers["Content-Encoding"] = encoding
            if "etag" in headers and not headers["etag"].startswith("W/"):
                response.headers["ETag"] = f"W/{headers['etag']}"
        return response

    return compress
