# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Transforms from Python: against zlib and gzip, in memory of every kind, and everything that must be refused."""

import argparse
import gzip
import inspect
import random
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest

import memlift
from memlift import transform
from memlift.transform import Chain, Step

KEY = bytes(range(32))
NONCE = bytes(range(12))
FRAMED = bytes([1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0])
FORMATS = ["deflate", "zlib", "gzip", "lz4", "zstd", "pages"]
SIZES = [0, 1, 100, 4096, 16384, 65537, 1_000_000]


def text(size, seed=1):
    chance = random.Random(seed)
    words = [b"memory", b"page", b"<p>", b"copy", b"line "]
    words += [b"%x" % chance.getrandbits(24) for _ in range(200)]
    out = bytearray()
    while len(out) < size:
        out += chance.choice(words)
    return bytes(out[:size])


def inflated(packed, format):
    return zlib.decompress(packed, {"deflate": -15, "zlib": 15, "gzip": 31}[format])


def deflated(data, format):
    packer = zlib.compressobj(6, zlib.DEFLATED, {"deflate": -15, "zlib": 15, "gzip": 31}[format])
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("effort", ["fast", "default", "small", "adaptive"])
def test_packs_and_unpacks(size, format, effort):
    data = text(size)
    packed = transform.pack(data, format, effort)
    assert type(packed) is bytes
    assert transform.unpack(packed, format) == data
    if format in ("deflate", "zlib", "gzip"):
        assert inflated(packed, format) == data
        assert transform.unpack(deflated(data, format), format) == data


def test_more_effort_makes_less():
    # Real text: what Python itself is written in.
    modules = (argparse, inspect, random, subprocess, threading)
    data = b"".join(inspect.getsource(module).encode() for module in modules)
    fast, default, small = (len(transform.pack(data, "zlib", effort)) for effort in ("fast", "default", "small"))
    assert small <= 1.02 * len(zlib.compress(data, 6))
    assert small < default < fast < len(data) / 2


def test_a_stream_ends_where_it_ends():
    packed = gzip.compress(b"one") + gzip.compress(b"two")
    outcome = transform.copy(Step.unpack("gzip"), packed)
    assert bytes(outcome.data) == b"one"
    assert outcome.read == len(gzip.compress(b"one"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", [KEY[:16], KEY])
def test_seals_and_opens(size, key):
    data = text(size)
    sealed, tag = transform.seal(key, NONCE, data, b"head")
    assert len(sealed) == size and len(tag) == 16
    assert transform.open(key, NONCE, tag, sealed, b"head") == data
    for wrong in (
        (key, NONCE, tag, sealed, b"heads"),
        (key, FRAMED, tag, sealed, b"head"),
        (key, NONCE, bytes(16), sealed, b"head"),
        (key[::-1], NONCE, tag, sealed, b"head"),
    ):
        with pytest.raises(memlift.WrongTagError):
            transform.open(*wrong)


def test_nist_vector():
    # GCM specification (McGrew, Viega), test case 4.
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308")
    nonce = bytes.fromhex("cafebabefacedbaddecaf888")
    plain = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    aad = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    assert transform.seal(key, nonce, plain, aad).tag.hex() == "5bc94fbc3221a5db94fae95ae7121a47"


def test_against_cryptography():
    aead = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead")
    data = text(100_000)
    sealed, tag = transform.seal(KEY, NONCE, data, b"head")
    assert aead.AESGCM(KEY).encrypt(NONCE, data, b"head") == sealed + tag


def test_out_is_written_in_place():
    data = text(50_000)
    array = np.zeros((100, 125), np.float64)
    sealed, tag = transform.seal(KEY, NONCE, data, out=array)
    assert isinstance(sealed, memoryview) and len(sealed) == 50_000
    assert bytes(array.view(np.uint8).ravel()[:50_000]) == bytes(sealed)
    back = bytearray(60_000)
    assert transform.open(KEY, NONCE, tag, sealed, out=back) == data
    assert back[:50_000] == data and back[50_000:] == bytes(10_000)
    with pytest.raises(memlift.WrongTagError):
        transform.open(KEY, NONCE, bytes(16), sealed, out=back)
    assert back == bytes(60_000)
    # In place.
    own = bytearray(data)
    tag = transform.seal(KEY, NONCE, own, out=own).tag
    assert own != data
    transform.open(KEY, NONCE, tag, own, out=own)
    assert own == data


def test_arrays_of_every_type_are_sources():
    for array in (np.arange(30_000, dtype="f8").reshape(100, 300), np.zeros((3, 0, 2)), np.ones(5, "complex64")):
        assert transform.unpack(transform.pack(array)) == array.tobytes()
    assert transform.unpack(transform.pack(memoryview(b"abc"))) == b"abc"


def test_what_is_no_contiguous_buffer_is_refused():
    for wrong in (np.arange(100)[::2], "text", 5, None, np.asfortranarray(np.ones((4, 5)))):
        with pytest.raises(memlift.UnsupportedTypeError):
            transform.pack(wrong)
    with pytest.raises(memlift.UnsupportedTypeError):
        transform.pack(b"abc", out=b"read-only")


def test_errors():
    data = text(10_000)
    packed = transform.pack(data)
    with pytest.raises(memlift.CorruptStreamError):
        transform.unpack(packed[:-1])
    with pytest.raises(memlift.CorruptStreamError):
        transform.unpack(b"not gzip at all, for sure")
    with pytest.raises(memlift.TargetTooSmallError):
        transform.unpack(packed, out=bytearray(9_999))
    with pytest.raises(memlift.TargetTooSmallError):
        transform.unpack(packed, bytes_max=9_999)
    assert transform.unpack(packed, bytes_max=10_000) == data
    with pytest.raises(memlift.TargetTooSmallError):
        transform.seal(KEY, NONCE, data, out=bytearray(9_999))
    with pytest.raises(memlift.IncompressibleError):
        noise = random.Random(1).randbytes(4096)
        transform.pack(noise, out=bytearray(4096))
    both = bytearray(10_000)
    with pytest.raises(memlift.OverlapError):
        transform.pack(memoryview(both)[:6000], out=memoryview(both)[5000:])
    with pytest.raises(memlift.BadKeyError):
        transform.seal(KEY[:24], NONCE, data)
    with pytest.raises(ValueError):
        transform.seal(KEY, NONCE[:11], data)
    with pytest.raises(ValueError):
        transform.pack(data, "brotli")
    with pytest.raises(ValueError):
        transform.pack(data, effort="heroic")
    with pytest.raises(memlift.UnsupportedFormatError):
        transform.Packer("zstd")
    assert issubclass(memlift.WrongTagError, memlift.Error)


def test_a_bomb_stops_at_bytes_max():
    packed = transform.pack(bytes(100_000_000), "zstd")
    with pytest.raises(memlift.TargetTooSmallError):
        transform.unpack(packed, "zstd", bytes_max=1_000_000)


def test_crc32c():
    assert transform.crc32c(b"123456789") == 0xE3069283
    data = text(100_000)
    assert transform.crc32c(data[50_000:], transform.crc32c(data[:50_000])) == transform.crc32c(data)
    outcome = transform.copy(Step.crc32c(), data)
    assert outcome.data == data and outcome.crc == transform.crc32c(data)


@pytest.mark.parametrize("size", SIZES)
def test_framed_chain(size):
    data = text(size)
    there = Chain([Step.crc32c(), Step.pack("deflate"), Step.seal(KEY, FRAMED)], block_bytes=65536)
    framed = transform.copy(there, data)
    assert framed.written <= there.bound(size) and framed.tag is None
    back = [Step.open(KEY, FRAMED), Step.unpack("deflate"), Step.crc32c()]
    opened = transform.copy(Chain(back, block_bytes=65536), framed.data)
    assert opened.data == data and opened.crc == framed.crc
    bad = bytearray(framed.data)
    bad[-1] ^= 1
    with pytest.raises(memlift.Error):
        transform.copy(Chain(back, block_bytes=65536), bad)


def test_flat_chain_is_its_steps():
    data = text(200_000)
    outcome = transform.copy([Step.crc32c(), Step.pack("zlib"), Step.seal(KEY, NONCE)], data)
    assert outcome.crc == transform.crc32c(data)
    assert inflated(transform.open(KEY, NONCE, outcome.tag, outcome.data), "zlib") == data


def test_a_nonce_seals_once():
    step = Step.seal(KEY, NONCE)
    with pytest.raises(memlift.TargetTooSmallError):
        transform.copy(step, b"abc", bytearray(2))
    transform.copy(step, b"abc")
    with pytest.raises(memlift.OutOfOrderError):
        transform.copy(step, b"abd")


def test_bad_chains():
    for steps in ([Step.unpack(), Step.pack()], [Step.seal(KEY, NONCE), Step.pack()], [Step.crc32c()] * 3):
        with pytest.raises(memlift.BadChainError):
            Chain(steps)
    with pytest.raises(memlift.BadChainError):
        Chain([Step.pack()], block_bytes=5000)
    with pytest.raises(TypeError):
        transform.copy("pack", b"")


@pytest.mark.parametrize("format", ["deflate", "zlib", "gzip"])
def test_packer(format):
    data = text(300_000)
    packer = transform.Packer(format, "small")
    packed = b"".join(packer.push(data[at : at + 777]) for at in range(0, 150_000, 777))
    packed += packer.flush()
    reader = zlib.decompressobj({"deflate": -15, "zlib": 15, "gzip": 31}[format])
    begin = 777 * -(-150_000 // 777)
    assert reader.decompress(packed) == data[:begin]
    packed += packer.push(data[begin:]) + packer.finish()
    assert inflated(packed, format) == data
    with pytest.raises(memlift.OutOfOrderError):
        packer.push(b"more")


def test_sealer_and_opener():
    data = text(100_000)
    whole, tag = transform.seal(KEY, NONCE, data, b"head")
    sealer = transform.Sealer(KEY, NONCE, b"head")
    room = bytearray(50_000)
    pieces = [bytes(sealer.push(data[:50_000], out=room)), sealer.push(data[50_000:])]
    assert b"".join(pieces) == whole and sealer.finish() == tag
    with pytest.raises(memlift.OutOfOrderError):
        sealer.push(b"more")
    for right in (True, False):
        opener = transform.Opener(KEY, NONCE, b"head")
        for at in range(0, len(whole), 33_333):
            assert opener.push(whole[at : at + 33_333]) is None
        if right:
            assert opener.finish(tag) == data
        else:
            with pytest.raises(memlift.WrongTagError):
                opener.finish(bytes(16))
        with pytest.raises(memlift.OutOfOrderError):
            opener.finish(tag)


def test_the_gil_is_released():
    data = text(4_000_000)
    turns = []
    done = threading.Event()

    def count():
        while not done.is_set():
            turns.append(1)
            time.sleep(0.0005)  # gives the lock away by itself

    # Without a release by us, the other thread would wait for the lock for 1000 s.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=count)
        thread.start()
        before = len(turns)
        packed = transform.pack(data)
        after = len(turns)
    finally:
        done.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert after > before and gzip.decompress(packed) == data


def test_threads_side_by_side():
    data = [text(200_000, seed) for seed in range(8)]
    results = [None] * 8

    def work(at):
        for _ in range(5):
            results[at] = transform.unpack(transform.pack(data[at]))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == data


def test_explain():
    why = transform.explain("seal", 65536)
    assert "seal" in why["text"].lower() and set(why["stores"]) == {"temporal", "streaming", "isolated"}
    packs = transform.explain("pack", 65536)
    assert packs["effort"] in ("default", "fast") and f"adaptive is {packs['effort']}" in packs["text"]
    with pytest.raises(ValueError):
        transform.explain("fly", 1)


def test_results_do_not_leak():
    script = (
        "import resource\nfrom memlift import transform\n"
        "data = bytes(1_000_000)\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for _ in range(20): transform.unpack(transform.pack(data))\n"
        "first = peak()\n"
        "for _ in range(300): transform.unpack(transform.pack(data))\n"
        "assert peak() - first < 50_000, (first, peak())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
