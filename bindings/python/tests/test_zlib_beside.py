# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.zlib` and `memlift.gzip` call by call beside the standard library: results, attributes, and types and texts of errors.

Goal    a program that goes over to memlift sees no difference but the packed bytes
Not here texts of errors about the number of arguments, which the interpreter itself has changed
"""

import array
import gzip as standard_gzip
import io
import random
import zlib as standard

import pytest

from memlift import gzip, zlib


class Six:
    def __index__(self):
        return 6


class Huge:
    def __index__(self):
        return 1 << 70


DATA = [b"", b"a", b"hello" * 100, bytearray(b"abc" * 1000), memoryview(b"xyz" * 50), array.array("I", range(100)), memoryview(b"abcdefgh")[::2], "text", None, 5]
KINDS = ["empty", "byte", "text", "bytearray", "view", "array", "gaps", "str", "None", "int"]
NUMBERS = [-1, 0, 6, 9, 10, -2, 15, 31, 47, -15, -8, 8, 25, 16, 32, 48, -16, 1 << 31, 1 << 40, 1 << 70, True, None, "6", 6.0, Six(), Huge()]
PACKED = standard.compress(b"hello world" * 20)


def outcome(work):
    """What a call gives, or the type and text of its error."""
    try:
        return work()
    except Exception as error:
        return type(error).__name__, str(error)


def copies_of(streams, log):
    """Copies of two streams; the streams themselves if neither can be copied, for the same reason."""
    copies = [outcome(lambda stream=stream: stream.copy()) for stream in streams]
    if isinstance(copies[0], tuple) or isinstance(copies[1], tuple):
        assert copies[0] == copies[1], log
        return streams
    return copies


def both(work, *case):
    theirs, ours = outcome(lambda: work(standard)), outcome(lambda: work(zlib))
    assert ours == theirs, case
    return ours


@pytest.mark.parametrize("data", DATA, ids=KINDS)
def test_arguments_of_functions(data) -> None:
    for number in NUMBERS:
        both(lambda module: module.crc32(data, number), number)
        both(lambda module: module.adler32(data, number), number)
        both(lambda module: standard.decompress(module.compress(data, number)), number)
        both(lambda module: standard.decompress(module.compress(data, 6, number), number), number)
    both(lambda module: module.crc32(data))
    both(lambda module: module.decompress(data))


@pytest.mark.parametrize("packed", [PACKED, PACKED[:-1], PACKED[:4], PACKED + b"tail", b"x" + PACKED, standard.compress(b"abc" * 50, wbits=31)[:-3]], ids=len)
def test_arguments_of_decompress(packed) -> None:
    for number in NUMBERS:
        both(lambda module: module.decompress(packed, number), number)
        if not isinstance(number, int) or abs(number) < 1 << 30:
            both(lambda module: module.decompress(packed, 15, number), number)
            both(lambda module: module.decompressobj().decompress(packed, number), number)
            both(lambda module: module.decompressobj().flush(number), number)


def test_arguments_of_objects() -> None:
    def round_trip(module, arguments):
        packer = module.compressobj(*arguments)
        packed = packer.compress(b"abc" * 100) + packer.flush()
        return standard.decompressobj(arguments[2], zdict=(*arguments, b"")[5]).decompress(packed)

    for place in range(5):
        for number in NUMBERS:
            arguments = [6, 8, 15, 8, 0]
            arguments[place] = number
            both(lambda module: round_trip(module, arguments), arguments)
    for dictionary in [b"", b"abc", bytearray(b"ab"), memoryview(b"ab"), 5, "abc", 1.5]:
        both(lambda module: round_trip(module, [6, 8, 15, 8, 0, dictionary]), dictionary)
    for dictionary in [b"", b"abc", None, 5, "abc"]:
        both(lambda module: module.decompressobj(15, dictionary).decompress(PACKED), dictionary)
        both(lambda module: module.decompressobj(-15, zdict=dictionary).decompress(PACKED[2:-4]), dictionary)
    for mode in NUMBERS:
        both(lambda module: bool(module.compressobj().flush(mode)), mode)


def sample(rng):
    size = rng.randrange(rng.choice([1, 10, 1000, 30_000, 120_000]))
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(size)
    if kind == 1:
        return bytes([rng.randrange(256)]) * size
    return b"".join(b"line %d of %d\n" % (rng.randrange(1000), number) for number in range(size // 14))


def damaged(rng, packed):
    kind = rng.randrange(7)
    if kind == 0:
        return packed[: rng.randrange(len(packed) + 1)]
    if kind == 1 and packed:
        wrong = bytearray(packed)
        wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
        return bytes(wrong)
    return packed + [b"", b"", rng.randbytes(40), packed, b"\0" * 20][kind - 2]


@pytest.mark.parametrize("seed", range(12))
def test_streams_that_unpack(seed) -> None:
    for number in range(12):
        rng = random.Random(seed * 1000 + number)
        wbits = rng.choice([15, 31, -15, 47, 9, 25, -9])
        dictionary = rng.choice([None, b"line of the"]) if wbits < 16 else None
        packer = standard.compressobj(rng.randrange(10), 8, 15 if wbits == 47 else wbits, 8, 0, **({"zdict": dictionary} if dictionary else {}))
        packed = packer.compress(sample(rng)) + packer.flush(rng.choice([2, 3])) + packer.compress(sample(rng)) + packer.flush()
        packed = damaged(rng, packed)
        known = rng.choice([dictionary, dictionary, b"another"])
        streams = [module.decompressobj(wbits, **({"zdict": known} if known else {})) for module in (standard, zlib)]
        at, log = 0, [seed, number, wbits, dictionary, known, len(packed)]
        for _ in range(rng.randrange(1, 30)):
            step, most = rng.randrange(10), rng.choice([0, 0, 1, 2, 10, 1000, 16384, 40_000])
            if step < 8:
                piece = packed[at : at + rng.choice([0, 1, 10, 1000, 100_000])]
                if streams[0].unconsumed_tail and step < 4:
                    piece = streams[0].unconsumed_tail
                else:
                    at += len(piece)
                log.append((len(piece), most))
                found = [outcome(lambda stream=stream: stream.decompress(piece, most)) for stream in streams]
            elif step == 8:
                log.append("flush")
                found = [outcome(lambda stream=stream: stream.flush(most + 1)) for stream in streams]
            else:
                log.append("copy")
                streams = copies_of(streams, log)
                found = [None, None]
            states = [(stream.eof, stream.unused_data, stream.unconsumed_tail) for stream in streams]
            assert found[0] == found[1] and states[0] == states[1], log


@pytest.mark.parametrize("seed", range(8))
def test_streams_that_pack(seed) -> None:
    for number in range(12):
        rng = random.Random(seed * 1000 + number)
        arguments = rng.randrange(-1, 10), 8, rng.choice([15, 31, -15, 9, 25, -9, 12]), rng.randrange(1, 10), rng.choice([0, 0, 1, 2, 3, 4])
        streams, packed, log = [module.compressobj(*arguments) for module in (standard, zlib)], [b"", b""], [arguments]
        for _ in range(rng.randrange(1, 15)):
            step, mode, data = rng.randrange(10), rng.choice([0, 1, 2, 3, 4, 5, 2, 3, 4, 6, -1, 99]), sample(rng)
            if step < 5:
                log.append(len(data))
                found = [outcome(lambda stream=stream: stream.compress(data)) for stream in streams]
            elif step < 8:
                log.append(("flush", mode))
                found = [outcome(lambda stream=stream: stream.flush(mode)) for stream in streams]
            else:
                log.append("copy")
                streams = copies_of(streams, log)
                continue
            if all(isinstance(one, bytes) for one in found):
                packed = [before + one for before, one in zip(packed, found, strict=True)]
            else:
                assert found[0] == found[1], log
        # A stream that a flush has not ended may be cut anywhere.
        results = [outcome(lambda one=one: standard.decompressobj(arguments[2]).decompress(one)) for one in packed]
        assert isinstance(results[0], bytes) == isinstance(results[1], bytes), log


class Slow:
    """A file that gives few bytes at a time and cannot seek."""

    def __init__(self, data, size):
        self._file, self._size = io.BytesIO(data), size

    def read(self, size=-1):
        return self._file.read(self._size if size < 0 else min(size, self._size))


def into(file, size):
    target = bytearray(size)
    count = file.readinto(target)
    return bytes(target[:count])


@pytest.mark.parametrize("seed", range(12))
def test_files_that_are_read(seed) -> None:
    for number in range(12):
        rng = random.Random(seed * 1000 + number)
        packed = b"".join(standard_gzip.compress(sample(rng), rng.randrange(10), mtime=5) for _ in range(rng.randrange(1, 4)))
        packed = damaged(rng, packed)
        slow = rng.choice([0, 0, 1, 7, 1000, 100_000])
        files = [
            module.GzipFile(fileobj=Slow(packed, slow) if slow else io.BytesIO(packed), mode="rb") for module in (standard_gzip, gzip)
        ]
        log = [seed, number, len(packed), slow]
        for _ in range(rng.randrange(1, 20)):
            size, place, whence = rng.choice([0, 1, 100, 8191, 8193, 100_000, 1 << 20]), rng.choice([0, 5, 1000, 50_000, -3]), rng.choice([0, 0, 1, 2])
            name, step = rng.choice(
                [
                    ("read", lambda file: file.read(size)),
                    ("readinto", lambda file: into(file, size)),
                    ("readline", lambda file: file.readline(size or -1)),
                    ("tell", lambda file: file.tell()),
                    ("seek", lambda file: file.seek(place, whence)),
                    ("all", lambda file: file.read()),
                    ("state", lambda file: (file.mtime, file.mode, file.closed, file.readable(), file.seekable())),
                ]
            )
            log.append((name, size, place, whence))
            found = [outcome(lambda file=file: step(file)) for file in files]
            assert found[0] == found[1], log
            if isinstance(found[0], tuple) and name != "state":
                break


def test_modes_of_open(tmp_path) -> None:
    def opened(module, mode, options):
        path = tmp_path / "file.gz"
        path.unlink(missing_ok=True)
        if "x" not in str(mode):
            path.write_bytes(standard_gzip.compress(b"hello\n"))
        with module.open(path, mode, **options) as file:
            return type(file).__name__, file.read() if "r" in mode else file.write("abc" if "t" in mode else b"abc")

    for mode in ["rb", "r", "rt", "w", "wt", "xb", "x", "ab", "at", "r+", "rw", "", "t", "rbt", "U", None, 5]:
        for options in ({}, {"compresslevel": 10}, {"encoding": "utf-8"}, {"newline": ""}):
            found = [outcome(lambda module=module: opened(module, mode, options)) for module in (standard_gzip, gzip)]
            assert found[0] == found[1], (mode, options)


def test_results_that_grow_beyond_every_guess() -> None:
    data = b"\0" * (12 << 20) + b"end"
    for wbits in (15, -15, 31):
        packed = standard.compress(data, 1, wbits)
        # The length that gzip states is not believed either.
        for one in (packed, packed[:-4] + b"\1\0\0\0"):
            both(lambda module: module.decompress(one, wbits) == data, wbits)
        assert zlib.decompressobj(wbits).decompress(packed) == data
    assert standard.decompress(zlib.compress(data)) == data
