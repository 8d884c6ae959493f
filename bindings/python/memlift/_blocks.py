# SPDX-License-Identifier: Apache-2.0 OR MIT
"""gzip files that threads pack and unpack: BGZF blocks.

- **Flow** write ─▶ pieces of 16 blocks ─▶ a pool packs them ─▶ the writer's own thread puts them into the file, in order.
  file ─▶ pieces of whole blocks ─▶ a pool unpacks them ─▶ the reader, in order; a file without blocks is unpacked by one thread ahead of its reader
- **Layout** a block is a gzip member with an extra field BC that holds its length - 1 (SAM specification, section 4.1); an empty one ends the file
- **Order** at most 3 pieces per thread and 2 more are under way: what is written faster than it is packed waits
- **Owner** a file that was opened here is closed here; the pool ends with its file. A child of a fork has no threads: there, reading and writing
  are errors.ClosedError, and closing leaves the parent's file as it is
"""

import atexit
import builtins
import collections
import concurrent.futures
import gzip as _standard
import io
import os
import struct
import sys
import threading
import weakref

from memlift import zlib
from memlift.errors import ClosedError, ForkedError

BLOCK_BYTES = 0xFF00
"""Bytes of a block before packing, as bgzip has it: packed, they fit into 64 KiB even where they do not get smaller."""

PIECE_BLOCKS = 16
HEADER = struct.Struct("<4BI2BH2BHH")
TRAILER = struct.Struct("<II")
LAST = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The empty block at the end of a file: one that is cut off does not have it."""


def packed(block, level):
    """Returns a block of at most BLOCK_BYTES as a gzip member."""
    body = zlib.compress(block, level, -15)
    if len(body) > 0xFFFF - HEADER.size - TRAILER.size:
        body = zlib.compress(block, 0, -15)
    size = HEADER.size + len(body) + TRAILER.size
    extra = 4 if level == 1 else 2 if level == 9 else 0
    head = HEADER.pack(0x1F, 0x8B, 8, 4, 0, extra, 255, 6, 0x42, 0x43, 2, size - 1)
    return head + body + TRAILER.pack(zlib.crc32(block), len(block))


def pack_piece(piece, level):
    with memoryview(piece) as view:
        return [packed(view[at : at + BLOCK_BYTES], level) for at in range(0, len(view), BLOCK_BYTES)]


def pool_of(threads):
    return concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="memlift-gzip")


def check_process(pid):
    if pid != os.getpid():
        raise ForkedError("this file belongs to the process that opened it: open it again after the fork")


_open_files = weakref.WeakSet()


@atexit.register
def _end_files():
    """Ends files that were left open, while the interpreter still runs. Later a thread that reads ahead would stand still wherever it is, and
    the file below a writer may be closed before it."""
    for file in list(_open_files):
        file._end()


class Writer(io.BufferedIOBase):
    """A file that is written in blocks, which a pool packs."""

    _pool = None  # one that was refused has none, and is closed as well

    def __init__(self, filename, mode, level, threads, index):
        if not -1 <= level <= 9:
            raise ValueError(f"compresslevel={level}: give -1 to 9")
        self._own = isinstance(filename, (str, bytes, os.PathLike))
        if not self._own and not hasattr(filename, "write"):
            raise TypeError("filename must be a str or bytes object, or a file")
        self._pool, self._pid = None, os.getpid()
        # Without a buffer of its own, which a child would write a second time.
        self._file = builtins.open(filename, mode if "b" in mode else mode + "b", buffering=0) if self._own else filename
        self.name = os.fspath(filename) if self._own else getattr(filename, "name", "")
        self.mode = "wb"
        self._level, self._index, self._most = level, index, 3 * threads + 2
        self._pool = pool_of(threads)
        self._piece, self._waiting, self._starts = bytearray(), collections.deque(), []
        self._packed_bytes = self._bytes = 0
        self._given = 0
        _open_files.add(self)

    def writable(self):
        return True

    def fileno(self):
        return self._file.fileno()

    def tell(self):
        return self._given

    def _check(self):
        if self.closed:
            raise ValueError("I/O operation on closed file")
        check_process(self._pid)

    def write(self, data):
        self._check()
        with memoryview(data) as view, view.cast("B") as piece:
            size, at = len(piece), 0
            while at < size:
                part = piece[at : at + PIECE_BLOCKS * BLOCK_BYTES - len(self._piece)]
                self._piece += part
                at += len(part)
                if len(self._piece) == PIECE_BLOCKS * BLOCK_BYTES:
                    self._send()
        self._given += size
        return size

    def _send(self):
        """Gives what was written so far to the pool."""
        if self._piece:
            try:
                future = self._pool.submit(pack_piece, self._piece, self._level)
            except RuntimeError:
                # The interpreter ends, and starts no threads any more.
                future = concurrent.futures.Future()
                future.set_result(pack_piece(self._piece, self._level))
            self._waiting.append((future, len(self._piece)))
            self._piece = bytearray()
        while self._waiting and (len(self._waiting) > self._most or self._waiting[0][0].done()):
            self._put()

    def _put(self):
        """Puts the oldest piece into the file, once it is packed."""
        future, size = self._waiting.popleft()
        blocks = future.result()
        for number, block in enumerate(blocks):
            self._starts.append((self._packed_bytes, self._bytes + number * BLOCK_BYTES))
            self._packed_bytes += len(block)
        self._bytes += size
        self._put_bytes(b"".join(blocks))

    def _put_bytes(self, data):
        """Writes all of it: a file without a buffer may take a part at a time."""
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                at += self._file.write(view[at:]) or 0

    def flush(self):
        """Ends the block; all that was written is in the file then."""
        if self.closed or self._pool is None:
            return
        check_process(self._pid)
        self._send()
        while self._waiting:
            self._put()
        if hasattr(self._file, "flush"):
            self._file.flush()

    def _end(self):
        self.close()

    def close(self):
        """Packs the rest, ends the file and writes the index. A second time does nothing."""
        if self.closed or self._pool is None:
            return
        if self._pid != os.getpid():
            self._pool = None
            super().close()
            return
        try:
            self.flush()
            self._put_bytes(LAST)
            if self._index is not None:
                entries = self._starts[1:]
                with builtins.open(self._index, "wb") as file:
                    file.write(struct.pack("<Q", len(entries)))
                    file.write(b"".join(struct.pack("<QQ", *entry) for entry in entries))
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
            try:
                if self._own:
                    self._file.close()
            finally:
                super().close()


def block_bytes(data, at):
    """Returns the size of the block that begins at `at`; 0 where too little of it is there, None where none begins."""
    if len(data) - at < HEADER.size:
        return 0 if bytes(data[at : at + 4]) in (b"\x1f\x8b\x08\x04"[: len(data) - at],) else None
    fields = HEADER.unpack_from(data, at)
    if fields[:4] != (0x1F, 0x8B, 8, 4) or fields[7] != 6 or fields[8:11] != (0x42, 0x43, 2):
        return None
    size = fields[11] + 1
    if size < HEADER.size + TRAILER.size:
        return None
    return size if at + size <= len(data) else 0


def unpack_piece(piece, starts):
    """Returns the bytes of the blocks of a piece that begin at `starts`."""
    found = []
    with memoryview(piece) as view:
        for start, end in zip(starts, [*starts[1:], len(piece)]):
            sum_, size = TRAILER.unpack_from(view, end - TRAILER.size)
            try:
                data = zlib.decompress(view[start + HEADER.size : end - TRAILER.size], -15, max(size, 1))
            except zlib.error as error:
                raise _standard.BadGzipFile(f"a block cannot be unpacked: {error}") from error
            if zlib.crc32(data) != sum_:
                raise _standard.BadGzipFile(f"CRC check failed {hex(sum_)} != {hex(zlib.crc32(data))}")
            if len(data) != size:
                raise _standard.BadGzipFile("Incorrect length of data produced")
            found.append(data)
    return b"".join(found)


class _Joined:
    """Bytes that were read already, and the file behind them."""

    def __init__(self, first, file):
        self._first, self._file = io.BytesIO(first), file

    def read(self, size=-1):
        return self._first.read(size) or self._file.read(size)


READ_BYTES = 1 << 20
PACKED_BYTES = 1 << 18
END = None


class _Ahead(io.RawIOBase):
    """The unpacked bytes of a file, in order: a thread reads it, and a pool unpacks its blocks."""

    def __init__(self, file, threads):
        self._file, self._threads, self._most, self._pid = file, threads, 3 * threads + 2, os.getpid()
        self._spare = []
        self._start = file.tell() if getattr(file, "seekable", lambda: False)() else None
        self._position = 0
        self._begin()

    def _begin(self):
        self._pool = None
        self._ready, self._changed, self._ends = collections.deque(), threading.Condition(), False
        self._piece, self._at = b"", 0
        self._is_over = False
        self._thread = threading.Thread(target=self._read_ahead, name="memlift-gzip-reader", daemon=True)
        self._thread.start()
        _open_files.add(self)

    def _end(self):
        # A child has no such thread, and an interpreter that ends has ended it.
        if self._pid != os.getpid() or sys.is_finalizing():
            return
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._ready.clear()

    # The thread that reads ahead.

    def _offer(self, future):
        """Puts the next piece into the row; False when the file is being closed."""
        with self._changed:
            while len(self._ready) > self._most and not self._ends:
                self._changed.wait()
            self._ready.append(future)
            self._changed.notify_all()
            return not self._ends

    def _read_ahead(self):
        try:
            for future in self._pieces():
                if not self._offer(future):
                    return
            self._offer(END)
        except BaseException as error:
            failed = concurrent.futures.Future()
            failed.set_exception(error)
            self._offer(failed)

    def _pieces(self):
        rest, is_at_end = b"", False
        while not is_at_end:
            new = self._file.read(READ_BYTES)
            is_at_end = not new
            data, starts, at = rest + new, [], 0
            while size := block_bytes(data, at):
                starts.append(at)
                at += size
            if starts:
                self._pool = self._pool or pool_of(self._threads)
                yield self._pool.submit(unpack_piece, data[:at], starts)
            rest = data[at:]
            if size is None or is_at_end and rest:
                # Not a block: whatever it is, one thread unpacks it, and says what is wrong with it.
                yield from self._alone(_Joined(rest, self._file))
                return

    def _alone(self, file):
        """The bytes of a file of any members: by large pieces, unlike the reader of the interpreter's gzip."""
        data, is_first = b"", True
        while True:
            # Zeros may stand behind a member.
            while not (data := data if is_first else data.lstrip(b"\0")):
                if not (data := file.read(PACKED_BYTES)):
                    return
            if len(data) < 2:
                data += file.read(1)
            if data[:2] != b"\x1f\x8b":
                raise _standard.BadGzipFile(f"Not a gzipped file ({data[:2]!r})")
            is_first, member, first = False, zlib._Member(31), [data]
            while not member.eof:
                buffer = self._spare.pop() if self._spare else bytearray(READ_BYTES)
                try:
                    size = member.readinto(lambda _, first=first: first.pop() if first else file.read(PACKED_BYTES), buffer)
                except zlib.error as error:
                    if "incorrect data check" in str(error) or "incorrect length check" in str(error):
                        raise _standard.BadGzipFile(f"CRC check failed: {error}") from error
                    raise
                if size:
                    done = concurrent.futures.Future()
                    done.set_result(memoryview(buffer)[:size])
                    yield done
            data = member.unused_data

    # Its reader.

    def readable(self):
        return True

    def seekable(self):
        return self._start is not None

    def tell(self):
        return self._position

    def readinto(self, target):
        check_process(self._pid)
        while self._at == len(self._piece) and not self._is_over:
            with self._changed:
                while not self._ready:
                    if self._ends:
                        raise ClosedError("the file is read no more: it was closed, or the interpreter ends")
                    self._changed.wait()
                future = self._ready.popleft()
                self._changed.notify_all()
            if future is END:
                self._is_over = True
            else:
                try:
                    self._piece, self._at = future.result(), 0
                except BaseException:
                    # Each read from here on says it again.
                    self._ready.appendleft(future)
                    raise
        part = self._piece[self._at : self._at + len(target)]
        size = len(part)
        target[:size] = part
        self._at += size
        self._position += size
        if self._at == len(self._piece) and isinstance(self._piece, memoryview):
            # The next pieces go into the same memory: new memory would be faulted in page by page.
            self._spare.append(self._piece.obj)
            self._piece, self._at = b"", 0
        return size

    def seek(self, offset, whence=io.SEEK_SET):
        """Goes to a place of the unpacked bytes, backwards by unpacking from the start again."""
        if self._start is None:
            raise io.UnsupportedOperation("The underlying file object does not support seeking")
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            while self.read(READ_BYTES):
                pass
            offset += self._position
        elif whence != io.SEEK_SET:
            raise ValueError(f"Invalid value for whence: {whence}")
        check_process(self._pid)
        if offset < self._position:
            self._end()
            self._file.seek(self._start)
            self._position = 0
            self._begin()
        while self._position < offset and self.read(min(READ_BYTES, offset - self._position)):
            pass
        return self._position

    def close(self):
        if not self.closed:
            self._end()
        super().close()


class Reader(io.BufferedReader):
    """A gzip file that is unpacked ahead of its reader."""

    def __init__(self, filename, threads):
        own = isinstance(filename, (str, bytes, os.PathLike))
        if not own and not hasattr(filename, "read"):
            raise TypeError("filename must be a str or bytes object, or a file")
        self._file = builtins.open(filename, "rb", buffering=0) if own else filename
        self._own = own
        super().__init__(_Ahead(self._file, threads), READ_BYTES)

    @property
    def name(self):
        return getattr(self._file, "name", "")

    def fileno(self):
        return self._file.fileno()

    def close(self):
        try:
            super().close()
        finally:
            if self._own:
                self._file.close()
