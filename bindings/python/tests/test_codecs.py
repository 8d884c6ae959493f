# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.codecs` under numcodecs and Zarr, versions 2 and 3 of its format: every array comes back as it was, and damage is seen."""

import json

import numcodecs
import numpy as np
import pytest
import zarr

import memlift
from memlift import codecs

RNG = np.random.default_rng(20261128)
ARRAYS = {
    "counts": RNG.integers(0, 1000, (300, 70)).astype(np.int32),
    "prices": np.round(RNG.normal(100, 5, 40_000), 2),
    "noise": RNG.random((64, 64)),
    "dates": np.arange("2026-01-01", "2026-03-01", dtype="M8[D]"),
    "words": np.array(["one", "two", "three"] * 1000),
    "complex": (RNG.random(100) + 1j * RNG.random(100)),
    "record": np.zeros(50, dtype=[("a", "i2"), ("b", "f8")]),
    "bool": RNG.random(9999) > 0.5,
    "fortran": np.asfortranarray(RNG.integers(0, 9, (50, 60))),
    "gaps": RNG.integers(0, 9, (50, 60))[::2, ::3],
    "half": RNG.random(5000).astype(np.float16),
    "empty": np.zeros((0, 5)),
    "scalar": np.array(7.5),
}


@pytest.fixture(autouse=True)
def key():
    codecs.keys["sensors"] = bytes(range(32))
    yield
    codecs.keys.clear()


def all_codecs():
    for format in codecs.FORMATS:
        for effort in ("fast", "default", "small"):
            yield codecs.NumcodecsPages(format, effort)
    yield codecs.NumcodecsSealed("sensors")


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_numcodecs_gives_back_what_it_got(array) -> None:
    for codec in all_codecs():
        again = numcodecs.get_codec(json.loads(json.dumps(codec.get_config())))
        assert again == codec
        packed = codec.encode(array)
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        plain = array.tobytes(order="A" if array.flags.forc else "C")
        assert again.decode(packed).tobytes() == plain
        out = np.empty(array.shape, array.dtype, order=order)
        assert again.decode(packed, out) is out
        assert out.tobytes(order="A") == plain
        with pytest.raises(memlift.BadChunkError, match="bytes"):
            again.decode(packed, np.empty(array.nbytes + 1, np.uint8))


@pytest.mark.parametrize("name", ["counts", "prices", "noise", "bool", "half", "complex", "fortran"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("sealed", [False, True])
def test_zarr_gives_back_what_it_got(tmp_path, name, version, sealed) -> None:
    array = ARRAYS[name]
    made = codecs.Sealed("sensors") if sealed else codecs.Pages()
    compressor = made if version == 3 else made.numcodecs("sensors") if sealed else made.numcodecs()
    chunks = tuple(max(1, size // 3) for size in array.shape)
    zarr.create_array(tmp_path / "a", data=array, chunks=chunks, compressors=compressor, zarr_format=version)
    again = zarr.open_array(tmp_path / "a", mode="r")
    np.testing.assert_array_equal(again[:], array)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json")
    assert codecs.keys["sensors"] not in stored
    if sealed:
        codecs.keys.clear()
        with pytest.raises(memlift.BadKeyError, match="sensors"):
            again[:]
        codecs.keys["sensors"] = bytes(32)
        with pytest.raises(memlift.WrongTagError):
            again[:]


def test_damage_is_seen() -> None:
    packed = bytearray(codecs.NumcodecsSealed("sensors").encode(ARRAYS["counts"]))
    for at in range(0, len(packed), 97):
        packed[at] ^= 1
        with pytest.raises(memlift.WrongTagError):
            codecs.NumcodecsSealed("sensors").decode(packed)
        packed[at] ^= 1
    for cut in (0, 5, 27):
        with pytest.raises(memlift.BadChunkError):
            codecs.NumcodecsSealed("sensors").decode(packed[:cut])
    whole = codecs.NumcodecsPages().encode(ARRAYS["counts"])
    for cut in (0, 7, 9, len(whole) // 2):
        with pytest.raises((memlift.BadChunkError, memlift.CorruptStreamError, memlift.TargetTooSmallError)):
            codecs.NumcodecsPages().decode(whole[:cut])
    with pytest.raises(memlift.BadChunkError, match="length"):
        codecs.NumcodecsPages().decode(b"\xff" * 100)


def test_what_cannot_be_packed_is_named() -> None:
    with pytest.raises(TypeError, match="objects"):
        codecs.NumcodecsPages().encode(np.array([object()]))
    for arguments in ({"format": "brotli"}, {"effort": "most"}):
        with pytest.raises(ValueError, match=next(iter(arguments.values()))):
            codecs.NumcodecsPages(**arguments)
    with pytest.raises(memlift.BadKeyError, match="nobody"):
        codecs.NumcodecsSealed("nobody").encode(b"x")


def test_numbers_get_smaller_than_by_zlib() -> None:
    for name in ("counts", "prices"):
        assert len(codecs.NumcodecsPages().encode(ARRAYS[name])) < len(numcodecs.Zlib(6).encode(ARRAYS[name]))
