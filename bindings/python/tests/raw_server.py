# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A server written by hand from docs/formats/ipc.md as it was in version 4 of the protocol: it greets, and echoes short calls."""

import mmap
import os
import select
import socket
import struct
import threading

MAGIC = b"memlift\x01"
CALL, REPLY, EMBEDDED = 1, 2, 128


class RawServer:
    """Listens at the address; every part of the welcome can be replaced. `hello` is the client's greeting, `header` that of its memory."""

    def __init__(self, address, *, welcome=None, version=4):
        self.hello, self.header = None, None
        # Version 4: limits of 2^32 bytes and 64 calls; the rest is the reason of a refusal, which there is none of.
        self.welcome = welcome or MAGIC + struct.pack("<IIQII160x", version, 0, 1 << 32, 64, os.getpid())
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"\0memlift/{os.getuid()}/{address}")
        self.listener.listen(1)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        connection, _ = self.listener.accept()
        self.hello, fds, _, _ = socket.recv_fds(connection, 256, 5)
        page = mmap.mmap(fds[0], 69632)
        self.header = bytes(page[:16])
        connection.send(self.welcome)
        head = 0
        while not select.select([connection], [], [], 0.001)[0]:
            while head != struct.unpack_from("<I", page, 128)[0]:
                at = 4096 + head % 256 * 128
                message = bytes(page[at : at + 128])
                head += 1
                page[192:196] = struct.pack("<I", head)
                self._answer(page, message, fds[2])
        connection.close()
        for fd in fds:
            os.close(fd)

    def _answer(self, page, message, event):
        kind, flags = message[0], message[1]
        assert kind == CALL and flags & EMBEDDED or message[2] == 0, "only short calls"
        tail = struct.unpack_from("<I", page, 256)[0]
        at = 36864 + tail % 256 * 128
        reply = bytearray(message)
        reply[0] = REPLY
        # Of the flags, only where the payload lies is the reply's, too.
        reply[1] = flags & EMBEDDED
        reply[48:64] = bytes(16)
        page[at : at + 128] = bytes(reply)
        page[256:260] = struct.pack("<I", tail + 1)
        page[448:452] = bytes(4)
        os.eventfd_write(event, 1)

    def close(self):
        self.listener.close()
