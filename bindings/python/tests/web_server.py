# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Servers that `test_web.py` starts: `python web_server.py starlette|aiohttp SOCKET`."""

import asyncio
import json
import sys

import memlift.web

ROWS = json.dumps([{"id": number, "name": f"user {number}", "value": number / 7} for number in range(40_000)]).encode()
SMALL = b'{"small": true}'
PIECES = [b"piece %d, " % number * 20 for number in range(5)]


def starlette_app():
    from starlette.applications import Starlette
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    def answer(body, status=200, kind="application/json", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        async def endpoint(request):
            return Response(body, status, named, kind)

        return endpoint

    async def stream(request):
        async def pieces():
            for piece in PIECES:
                yield piece
                await asyncio.sleep(0.05)

        return StreamingResponse(pieces(), media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/rows", answer(ROWS, etag='"strong"', vary="Origin"), methods=["GET"]),
            Route("/small", answer(SMALL)),
            Route("/png", answer(ROWS, kind="image/png")),
            Route("/svg", answer(ROWS, kind="image/svg+xml")),
            Route("/encoded", answer(ROWS, content_encoding="br")),
            Route("/part", answer(ROWS, 206, content_range="bytes 0-1/2")),
            Route("/exact", answer(ROWS, cache_control="no-transform")),
            Route("/nothing", answer(b"", 204)),
            Route("/stream", stream),
        ]
    )
    app.add_middleware(memlift.web.Compress)
    return app


def aiohttp_app():
    from aiohttp import web

    def answer(body, status=200, kind="application/json", **headers):
        async def handler(request):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.Response(body=body, status=status, content_type=kind, headers=named)

        return handler

    app = web.Application(middlewares=[memlift.web.aiohttp_compress()])
    app.router.add_get("/rows", answer(ROWS, ETag='"strong"', Vary="Origin"))
    app.router.add_get("/small", answer(SMALL))
    app.router.add_get("/png", answer(ROWS, kind="image/png"))
    app.router.add_get("/svg", answer(ROWS, kind="image/svg+xml"))
    app.router.add_get("/encoded", answer(ROWS, Content_Encoding="br"))
    app.router.add_get("/part", answer(ROWS, 206, Content_Range="bytes 0-1/2"))
    app.router.add_get("/exact", answer(ROWS, Cache_Control="no-transform"))
    app.router.add_get("/nothing", answer(b"", 204))
    return app


if __name__ == "__main__":
    kind, socket = sys.argv[1:3]
    if kind == "starlette":
        import uvicorn

        uvicorn.run(starlette_app(), uds=socket, log_level="warning")
    else:
        from aiohttp import web

        web.run_app(aiohttp_app(), path=socket, print=None)
