# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.zlib` and `memlift.gzip` beyond what CPython's own tests ask (`test_cpython_suites.py`): threads, indexes, patching, damage.

Goal    what threads write is read by any gunzip, and what they read is what the standard library reads; no wait without an end
"""

import gzip as standard_gzip
import io
import os
import random
import struct
import subprocess
import sys
import threading
import zlib as standard

import pytest

from memlift import _blocks, gzip, zlib

SEED = 20261128
TEXT = b"".join(b"%d a line of a log, %d\n" % (number, number * number % 9973) for number in range(150_000))


def noise(size, seed=SEED):
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("data", [b"", b"x", TEXT, noise(300_000), TEXT[: _blocks.BLOCK_BYTES], b"\0" * (5 << 20)], ids=len)
@pytest.mark.parametrize("level", [1, 6, 9])
def test_what_threads_write_is_gzip(tmp_path, data, level) -> None:
    path, index = tmp_path / "a.gz", tmp_path / "a.gz.gzi"
    with gzip.open(path, "wb", level, threads=2, index=index) as file:
        for at in range(0, len(data), 77_777):
            assert file.write(data[at : at + 77_777]) == len(data[at : at + 77_777])
        assert file.tell() == len(data)
    assert standard_gzip.open(path).read() == data
    assert subprocess.run(["gzip", "-dc", path], capture_output=True, check=True).stdout == data
    for threads in (0, 1, 2):
        with gzip.open(path, threads=threads) as file:
            assert file.read() == data
    # Each entry of the index is where a block begins, and what it holds begins there, too.
    packed, entries = path.read_bytes(), index.read_bytes()
    (count,) = struct.unpack_from("<Q", entries)
    assert len(entries) == 8 + 16 * count and count == max(-(-len(data) // _blocks.BLOCK_BYTES) - 1, 0)
    for number in range(count):
        offset, start = struct.unpack_from("<QQ", entries, 8 + 16 * number)
        assert standard.decompressobj(31).decompress(packed[offset:]) == data[start : start + _blocks.BLOCK_BYTES]
    assert packed.endswith(_blocks.LAST)


def foreign(data, rng):
    """Members of different makers, one after another, with zeros at the end, as gzip files may have."""
    parts, at = [], 0
    while at < len(data):
        part = data[at : at + rng.randrange(1, 400_000)]
        at += len(part)
        kind = rng.randrange(3)
        if kind == 0:
            parts.append(standard_gzip.compress(part, 6))
        elif kind == 1:
            parts += [_blocks.packed(part[at : at + _blocks.BLOCK_BYTES], 6) for at in range(0, len(part), _blocks.BLOCK_BYTES)]
        else:
            stream = io.BytesIO()
            with standard_gzip.GzipFile("a name", "wb", 1, stream) as file:
                file.write(part)
            parts.append(stream.getvalue())
    return b"".join(parts) + b"\0" * rng.choice([0, 1, 700])


@pytest.mark.parametrize("seed", range(6))
def test_what_threads_read_is_what_the_standard_library_reads(tmp_path, seed) -> None:
    rng = random.Random(SEED + seed)
    packed = foreign(TEXT[: rng.randrange(len(TEXT))], rng)
    path = tmp_path / "a.gz"
    path.write_bytes(packed)
    with standard_gzip.open(path) as theirs, gzip.open(path, threads=rng.choice([1, 2, 3])) as ours:
        for _ in range(40):
            if rng.random() < 0.2:
                place = rng.randrange(len(TEXT))
                assert ours.seek(place) == theirs.seek(place)
            size = rng.randrange(200_000)
            assert ours.read(size) == theirs.read(size)
            assert ours.tell() == theirs.tell()


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_an_error_of_the_same_kind(tmp_path, seed) -> None:
    rng = random.Random(SEED + seed)
    packed = bytearray(foreign(TEXT[:500_000], rng).rstrip(b"\0"))
    at = rng.randrange(len(packed))
    if rng.random() < 0.4:
        del packed[at:]
    else:
        packed[at] ^= 1 << rng.randrange(8)
    path = tmp_path / "a.gz"
    path.write_bytes(packed)

    def outcome(opened):
        with opened as file:
            try:
                return file.read()
            except (EOFError, standard.error, standard_gzip.BadGzipFile, struct.error) as error:
                return type(error)

    theirs, ours = outcome(standard_gzip.open(path)), outcome(gzip.open(path, threads=2))
    if isinstance(theirs, bytes):
        assert ours == theirs
    else:
        assert isinstance(ours, type), f"{theirs} was not noticed"


def test_text_appending_and_wrong_arguments(tmp_path) -> None:
    path = tmp_path / "a.gz"
    with gzip.open(path, "wt", threads=2, encoding="utf-8") as file:
        file.write("ä line\n" * 1000)
    with gzip.open(path, "rt", threads=1, encoding="utf-8") as file:
        assert file.readlines() == ["ä line\n"] * 1000
    for mode, options in [("ab", {"threads": 2}), ("wb", {"index": path}), ("rb", {"threads": 1, "index": path}), ("rb", {"threads": -1})]:
        with pytest.raises(ValueError, match=r"threads|index"):
            gzip.open(path, mode, **options)
    with pytest.raises(ValueError, match="compresslevel"):
        gzip.open(tmp_path / "b.gz", "wb", 10, threads=1)
    assert not (tmp_path / "b.gz").exists()
    with pytest.raises(ValueError, match="Invalid mode"):
        gzip.open(path, "rbt", threads=1)
    file = gzip.open(tmp_path / "c.gz", "wb", threads=1)
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")


def test_a_file_object_stays_open_and_errors_of_it_are_raised() -> None:
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    target = io.BytesIO()
    with gzip.open(target, "wb", threads=1) as file:
        file.write(TEXT)
    assert standard_gzip.decompress(target.getvalue()) == TEXT
    target.seek(0)
    with gzip.open(target, threads=1) as file:
        assert file.read(10) == TEXT[:10]
    assert not target.closed
    file = gzip.open(Full(), "wb", threads=1)
    # It is raised by the next call, whichever that is when a thread has packed the text.
    with pytest.raises(OSError, match="No space"):
        try:
            file.write(TEXT)
        finally:
            file.close()


def test_closing_in_the_middle_ends_the_threads(tmp_path) -> None:
    path = tmp_path / "a.gz"
    with gzip.open(path, "wb", 1, threads=1) as file:
        file.write(noise(20 << 20))
    before = threading.active_count()
    for _ in range(20):
        with gzip.open(path, threads=2) as file:
            file.read(1)
    assert threading.active_count() == before


LEFT_OPEN = {
    "reader": "f = gzip.open(path, threads=2); f.read(1)",
    "writer": "f = gzip.open(path + '.new', 'wb', threads=2); f.write(bytes(5 << 20))",
    "forked reader": """
f = gzip.open(path, threads=2)
f.read(1)
if os.fork() == 0:
    try:
        while f.read(1 << 20): pass
    except ClosedError: os._exit(0)
    os._exit(1)
assert os.wait()[1] == 0 and len(f.read()) == SIZE - 1
""",
    "forked writer": """
f = gzip.open(path + '.new', 'wb', threads=2)
f.write(bytes(5 << 20))
if os.fork() == 0:
    try: f.write(b'x')
    except ClosedError: sys.exit()
    os._exit(1)
assert os.wait()[1] == 0
f.close()
assert gzip.open(path + '.new').read() == bytes(5 << 20)
""",
}


@pytest.mark.parametrize("program", LEFT_OPEN.values(), ids=LEFT_OPEN)
def test_neither_an_end_nor_a_fork_waits_for_threads(tmp_path, program) -> None:
    path = tmp_path / "a.gz"
    with gzip.open(path, "wb", 1, threads=1) as file:
        file.write(noise(20 << 20))
    start = f"import os, sys\nfrom memlift import gzip\nfrom memlift.errors import ClosedError\nSIZE, path = {20 << 20}, {str(path)!r}\n"
    # Python from 3.12 on warns of any fork beside threads.
    quiet = ["-W", "ignore::DeprecationWarning"]
    done = subprocess.run([sys.executable, *quiet, "-c", start + program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    if program == LEFT_OPEN["writer"]:
        assert standard_gzip.open(f"{path}.new").read() == bytes(5 << 20)


def test_many_threads_share_a_stream() -> None:
    packer, unpacker = zlib.compressobj(1), zlib.decompressobj()
    piece, threads = noise(40_000), 8

    def work():
        for _ in range(20):
            parts.append(packer.compress(piece))

    parts = []
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    packed = zlib.compressobj(1)
    whole = packed.compress(piece * (threads * 20)) + packed.flush()
    assert unpacker.decompress(whole) == piece * (threads * 20) and unpacker.eof
    assert sum(map(len, parts)) + len(packer.flush()) > 0


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 1 << 20])
@pytest.mark.parametrize("wbits", [15, -15, 31])
def test_results_are_read_by_the_standard_library_and_the_reverse(size, wbits) -> None:
    data = TEXT[:size]
    assert standard.decompress(zlib.compress(data, wbits=wbits), wbits) == data
    assert zlib.decompress(standard.compress(data, wbits=wbits), wbits) == data
    assert zlib.crc32(data, 7) == standard.crc32(data, 7) and zlib.adler32(data, 7) == standard.adler32(data, 7)


def test_a_stated_length_is_not_believed() -> None:
    packed = bytearray(standard_gzip.compress(b"x" * 1000))
    packed[-4:] = struct.pack("<I", 0xFFFF_FFFF)
    with pytest.raises(standard.error, match="incorrect length check"):
        zlib.decompress(bytes(packed), 31)


PATCHED = """
import sys, zlib, gzip, zipfile, io
from zlib import compress
import memlift.zlib
memlift.zlib.patch()
memlift.zlib.patch()
import zlib as again
from memlift import zlib as meant
assert again is memlift.zlib and gzip.zlib is memlift.zlib and zipfile.zlib is memlift.zlib and zlib is memlift.zlib
assert compress is memlift.zlib.compress and zipfile.crc32 is memlift.zlib.crc32
data = io.BytesIO()
with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
    file.writestr("a", b"x" * 100_000)
assert zipfile.ZipFile(data).read("a") == b"x" * 100_000
assert gzip.decompress(gzip.compress(b"y" * 1000)) == b"y" * 1000
memlift.zlib.unpatch()
import zlib as back
assert back is not memlift.zlib and gzip.zlib is back and compress is back.compress and zipfile.crc32 is back.crc32
assert memlift.zlib.compress is not back.compress and meant is memlift.zlib
"""


def test_lines_are_read_as_the_standard_library_reads_them(tmp_path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(standard_gzip.compress(TEXT[:100_000]))

    def use(module):
        found = []
        with module.open(path) as file:
            for line in file:
                found.append(line)
                if len(found) == 3:
                    break
            # A loop that ends early neither closes the file nor loses a line.
            found += [next(file), file.readline(), file.readline(size=4), file.read(size=5), file.tell(), file.readlines(50)]
            found += [next(iter(file)), file.peek(1)[:1], len(list(file)), file.readline(), list(file)]
            file.seek(7)
            found += [file.readline(), next(file)]
        found.append(file.closed)
        for call in (file.readline, file.read, lambda: next(file), lambda: iter(file), lambda: list(file)):
            with pytest.raises(ValueError) as error:
                call()
            found.append(str(error.value))
        found += [sum(len(line) for line in module.open(path)), list(module.open(path, "rt"))[:2]]
        with module.open(tmp_path / "b.gz", "wb") as file:
            for call in (lambda: file.read(1), file.readline, lambda: next(file), lambda: list(file)):
                try:
                    call()
                except (OSError, AttributeError) as error:
                    found.append(str(error))
        return found

    assert use(gzip) == use(standard_gzip)


def test_a_readline_of_a_subclass_is_what_a_loop_calls() -> None:
    class Upper(gzip.GzipFile):
        def readline(self, size=-1):
            return super().readline(size).upper()

    class Last(gzip.GzipFile):
        def __next__(self):
            return super().__next__()[-2:]

    packed = standard_gzip.compress(b"one\ntwo\n")
    assert list(Upper(fileobj=io.BytesIO(packed))) == [b"ONE\n", b"TWO\n"]
    assert list(Last(fileobj=io.BytesIO(packed))) == [b"e\n", b"o\n"]


def test_patch_and_unpatch() -> None:
    done = subprocess.run([sys.executable, "-c", PATCHED], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
