# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The standard library's `gzip` over memlift's zlib, and files that are packed and unpacked by several threads.

    from memlift import gzip                  # in place of: import gzip

    with gzip.open("log.gz", "wt", threads=2) as file:        # packed beside the program, in blocks
        file.write("a line\\n")

- **Same** names, arguments, results and exceptions are those of the interpreter's own `gzip`: its code runs here over `memlift.zlib`
- **Threads** a file that is written with `threads=` is BGZF, as bgzip writes: members of at most 64 KiB that any gunzip reads, and that
  `threads=` unpacks side by side. Other files are unpacked ahead of the reader by one thread
- **Index** `index=` writes where each block begins, as `bgzip --index` does, so that bgzip and samtools can seek in the file
"""

import gzip as _standard
import importlib.util as _util
import io
import sys as _sys

from memlift import zlib as _zlib

# From Python 3.14 on, `gzip` is another name of this one.
_spec = _util.find_spec("compression.gzip" if _sys.version_info >= (3, 14) else "gzip")
exec(_spec.loader.get_code(_spec.name), globals())  # noqa: S102: the interpreter's own module, over another zlib

__doc__ = (__doc__ or "") and _sys.modules[__name__].__doc__
zlib = _zlib
BadGzipFile = _standard.BadGzipFile
_open_alone = open  # noqa: F821: the interpreter's


class _GzipReader(_GzipReader):  # noqa: F821: the interpreter's
    """The interpreter's reader of gzip files. The data of a member is unpacked into the caller's buffer, and summed there."""

    def __init__(self, fp):
        super().__init__(fp)
        self._decomp_factory = zlib._Member
        self._decompressor = zlib._Member(**self._decomp_args)

    def _next(self, take):
        """Goes on to a member that is not at its end, and returns what `take` gives of it; 0 at the end of the file."""
        while True:
            member = self._decompressor
            if member.eof:
                self._read_eof()
                self._new_member = True
                member = self._decompressor = self._decomp_factory(**self._decomp_args)
            if self._new_member:
                self._init_read()
                if not self._read_gzip_header():
                    self._size = self._pos
                    return 0
                self._new_member = False
            found = take(member)
            if member.eof:
                self._crc, self._stream_size = member.check
                if unused := member.unused_data:
                    self._fp.prepend(unused)
            if found:
                return found

    def readinto(self, b):
        with memoryview(b) as view, view.cast("B") as target:
            if not target:
                return 0
            size = self._next(lambda member: member.readinto(self._fp.read, target))
        self._pos += size
        return size

    def read(self, size=-1):
        if size < 0:
            return self.readall()
        if not size:
            return b""
        data = self._next(lambda member: member.read(self._fp.read, size)) or b""
        self._pos += len(data)
        return data


class GzipFile(GzipFile):  # noqa: F821: the interpreter's
    """The interpreter's GzipFile, whose lines are read without a call of Python code for each."""

    def read(self, size=-1):
        if self.fileobj is None or self.mode != READ:  # noqa: F821: the interpreter's
            return super().read(size)
        return self._buffer.read(size)

    def readline(self, size=-1):
        if self.fileobj is None:
            return super().readline(size)
        return self._buffer.readline(size)

    def __iter__(self):
        kind = type(self)
        is_own = kind.readline is GzipFile.readline and kind.__next__ is GzipFile.__next__
        if not is_own or self.fileobj is None or self.mode != READ:  # noqa: F821: the interpreter's
            return super().__iter__()
        return self._lines()

    def _lines(self):
        # The generator refers to this file, so that it stays open in `for line in gzip.open(…)`. Unlike `yield from`, the loop does
        # not close the buffer when the generator is dropped.
        for line in self._buffer:
            yield line


def open(  # noqa: A001: the name that it has in gzip
    filename,
    mode="rb",
    compresslevel=9,
    encoding=None,
    errors=None,
    newline=None,
    *,
    threads=0,
    index=None,
):
    """Opens a gzip file as `gzip.open`; with `threads`, packs and unpacks it beside the caller.

    threads: threads that pack or unpack; 0 does it in the caller's own, when it reads or writes.
    index: a path; what is written gets an index there, as bgzip writes it (NAME.gz.gzi). Needs threads.

    Raises what `gzip.open` raises, and ValueError for threads that append.
    """
    if threads < 0:
        raise ValueError(f"threads={threads}: give 0 or more")
    if not threads and index is None:
        return _open_alone(filename, mode, compresslevel, encoding, errors, newline)
    writes = not mode.startswith("r")
    if index is not None and not (threads and writes):
        raise ValueError("index is for files that are written with threads")
    if mode.startswith("a"):
        raise ValueError("threads cannot append: write a file of its own; gzip files may be joined by cat")
    from memlift._blocks import Reader, Writer

    # Arguments are looked at by the interpreter's own, before a file is made.
    text = "t" in mode
    if text and "b" in mode:
        raise ValueError(f"Invalid mode: {mode!r}")
    if not text and not (encoding is None and errors is None and newline is None):
        raise ValueError("Argument 'encoding', 'errors' or 'newline' not supported in binary mode")
    binary = Writer(filename, mode.replace("t", ""), compresslevel, threads, index) if writes else Reader(filename, threads)
    if not text:
        return binary
    return io.TextIOWrapper(binary, io.text_encoding(encoding), errors, newline)
