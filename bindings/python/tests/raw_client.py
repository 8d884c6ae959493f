# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A client written by hand from docs/formats/ipc.md, for saying things that a real one never would."""

import fcntl
import mmap
import os
import select
import socket
import struct

MAGIC = b"memlift\x01"
VERSION = 4
CONTROL_BYTES = 69632
_ADD_SEALS = 1033
_SHRINK, _GROW, _SEAL = 2, 4, 1


def memfd(bytes, seal=True):
    fd = os.memfd_create("memlift-raw", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, bytes)
    if seal:
        fcntl.fcntl(fd, _ADD_SEALS, _SHRINK | _GROW | _SEAL)
    return fd


class RawClient:
    """Opens a session; every part of the greeting can be replaced."""

    def __init__(self, address, *, magic=MAGIC, version=VERSION, control_bytes=CONTROL_BYTES, request_bytes=1 << 16,
                 response_bytes=1 << 16, header=None, seal=True, descriptors=5, packet=None):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(10)
        self.socket.connect(f"\0memlift/{os.getuid()}/{address}")
        self.control_fd = memfd(CONTROL_BYTES, seal)
        self.page = mmap.mmap(self.control_fd, CONTROL_BYTES)
        self.page[:16] = header or MAGIC + struct.pack("<II", VERSION, 256)
        self.server_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.client_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.request_fd = memfd(1 << 16, seal)
        self.response_fd = memfd(1 << 16, seal)
        self.fds = [self.control_fd, self.server_event, self.client_event, self.request_fd, self.response_fd]
        if packet is None:
            packet = magic + struct.pack("<IIQQQ", version, 0, control_bytes, request_bytes, response_bytes)
        socket.send_fds(self.socket, [packet], self.fds[:descriptors])

    def welcome(self):
        """(refused, reason); None if the server hung up without a word."""
        try:
            packet = self.socket.recv(256)
        except ConnectionError:
            return None
        if not packet:
            return None
        assert packet[:8] == MAGIC and len(packet) == 192
        return struct.unpack_from("<I", packet, 12)[0], packet[32:].split(b"\0")[0].decode()

    def put(self, offset, value):
        self.page[offset : offset + 4] = struct.pack("<I", value)

    def get(self, offset):
        return struct.unpack_from("<I", self.page, offset)[0]

    def entry(self, index, *, kind=1, flags=0, payload=1, element=b"\0", element_bytes=0, dimensions=0, job=1,
              operation=0, segment=0, offset=0, bytes=8, deadline=0, shape=()):
        data = struct.pack("<BBB1sBBHQQIIQQQQ", kind, flags, payload, element, element_bytes, dimensions, 0, job,
                           operation, segment, 0, offset, bytes, deadline, 0)
        data += struct.pack("<8Q", *shape, *[0] * (8 - len(shape)))
        self.raw_entry(index, data)

    def raw_entry(self, index, data):
        at = 4096 + index % 256 * 128
        self.page[at : at + 128] = data

    def publish(self, tail):
        self.put(128, tail)
        self.ring()

    def ring(self):
        os.eventfd_write(self.server_event, 1)

    def hung_up(self, seconds=10):
        """Whether the server ended the session."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN | select.POLLHUP)
        return bool(poll.poll(seconds * 1000)) and self.socket.recv(256) == b""

    def close(self):
        self.socket.close()
        self.page.close()
        for fd in self.fds:
            os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
