# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.web` under real servers: uvicorn with Starlette, and aiohttp; a plain client of the standard library reads what they send."""

import http.client
import os
import pathlib
import socket
import subprocess
import sys
import zlib

import pytest
import web_server

import memlift
from memlift import web

PROGRAM = pathlib.Path(__file__).with_name("web_server.py")


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@pytest.fixture(scope="module", params=["starlette", "aiohttp"])
def server(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("web") / "socket"
    with subprocess.Popen([sys.executable, PROGRAM, request.param, path], env=os.environ) as process:
        while process.poll() is None:
            try:
                Unix(path).connect()
                break
            except OSError:
                pass
        assert process.poll() is None, "the server has ended"
        yield request.param, path
        process.terminate()


def get(path, place, accepted, method="GET"):
    connection = Unix(path)
    connection.request(method, place, headers={} if accepted is None else {"Accept-Encoding": accepted})
    response = connection.getresponse()
    return response, response.read()


def plain(response, body):
    encoding = response.headers.get("Content-Encoding")
    if encoding == "gzip":
        return zlib.decompress(body, 31)
    return memlift.transform.unpack(body, "zstd") if encoding == "zstd" else body


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0.5, gzip;q=0.8", "gzip"),
        ("*", "zstd"),
        ("identity, *;q=0", None),
        ("br", None),
        (None, None),
    ],
)
def test_what_the_client_accepts_is_sent(server, accepted, encoding) -> None:
    response, body = get(server[1], "/rows", accepted)
    assert response.status == 200
    assert response.headers.get("Content-Encoding") == encoding
    assert plain(response, body) == web_server.ROWS
    assert int(response.headers["Content-Length"]) == len(body)
    assert "Accept-Encoding" in ",".join(response.headers.get_all("Vary")) and "Origin" in ",".join(response.headers.get_all("Vary"))
    assert response.headers["ETag"] == ('W/"strong"' if encoding else '"strong"')
    if encoding:
        assert len(body) < len(web_server.ROWS) / 4


def test_answers_that_are_left_alone(server) -> None:
    for place in ("/small", "/png", "/encoded", "/part", "/exact", "/nothing"):
        response, body = get(server[1], place, "gzip, zstd")
        assert response.headers.get("Content-Encoding") in (None, "br"), place
        assert body == {"/small": web_server.SMALL, "/nothing": b""}.get(place, web_server.ROWS), place
    response, body = get(server[1], "/svg", "gzip")
    assert response.headers.get("Content-Encoding") == "gzip" and zlib.decompress(body, 31) == web_server.ROWS
    response, body = get(server[1], "/rows", "gzip", "HEAD")
    assert response.status in (200, 405) and body == b""


def test_a_streams_pieces_arrive_one_by_one(server) -> None:
    kind, path = server
    if kind == "aiohttp":
        pytest.skip("streams are left to aiohttp's own enable_compression")
    connection = Unix(path)
    connection.request("GET", "/stream", headers={"Accept-Encoding": "zstd, gzip"})
    response = connection.getresponse()
    assert response.headers["Content-Encoding"] == "gzip" and "Content-Length" not in response.headers
    unpacker, got, reads = zlib.decompressobj(31), b"", 0
    while piece := response.read1(1 << 16):
        new = unpacker.decompress(piece)
        # Whole pieces only: each was flushed.
        assert b"".join(web_server.PIECES).startswith(got + new) and (got + new).endswith(b", ")
        got, reads = got + new, reads + 1
    assert got == b"".join(web_server.PIECES) and unpacker.eof and reads >= len(web_server.PIECES)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip;q=0", None), ("GZIP", "gzip"), ("x-gzip", "gzip"), ("gzip;q=nonsense", None), ("identity;q=1, gzip;q=0.5", None), ("", None), (";;,,=", None)],
)
def test_headers_are_read_as_rfc_9110_has_them(accepted, encoding) -> None:
    assert web.preferred(accepted, ["zstd", "gzip"]) == encoding


def test_wrong_arguments_are_named() -> None:
    for arguments in ({"level": 0}, {"minimum_size": -1}, {"encodings": ["br"]}, {"encodings": []}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            web.Compress(None, **arguments)
        with pytest.raises(ValueError, match=next(iter(arguments))):
            web.aiohttp_compress(**arguments)


@pytest.mark.parametrize("size", [0, 1, 128 << 10, (128 << 10) + 1, 3 << 20])
def test_a_worker_gives_its_core_up_between_pieces(monkeypatch, size) -> None:
    yields = []
    monkeypatch.setattr(web.os, "sched_yield", lambda: yields.append(None))
    body = (b'{"id": 17, "name": "user 17", "value": 2.4285714285714284}, ' * (size // 60 + 1))[:size]
    packed = web._pack(body, "gzip", 6)
    assert zlib.decompress(packed, 31) == body
    assert len(yields) == max(-(-size // (128 << 10)) - 1, 0)
    # Pieces cost no bytes.
    assert packed == memlift.zlib.compress(body, 6, 31)
