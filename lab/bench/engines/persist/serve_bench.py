# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows serve/*: `memlift pool serve` beside Redis and Valkey that sync their log before they answer, as redis-benchmark sees them.

Flow     --row NAME RIVAL ─▶ both servers on the same disk ─▶ redis-benchmark at each in turn, A B, B A, … ─▶ what both have is compared ─▶
         one JSON line per row
Rows     serve/set/CLIENTSxDEPTH, serve/get/…    seconds per request, with so many connections and requests outstanding in each
         serve/set_p99/…, serve/get_p99/…        seconds that one request in a hundred exceeds
Equal    appendonly yes, appendfsync always: as with durability=group here, a reply leaves when its request is on the disk, and requests of
         one round share a sync. Keys of 16 bytes, 100,000 of them at random, values of 100 bytes; one disk; threads as each has them by default
Not here what a ratio must reach
"""

import argparse
import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

PAIRS, QUICK_PAIRS = 11, 1
KEYS, VALUE_BYTES = 100_000, 100
REQUESTS, QUICK_REQUESTS = 200_000, 2_000
RIVALS = {"redis_always": ("redis-server", "redis-server"), "valkey_always": ("valkey-server", "valkey-server")}


class Missing(Exception):
    """What the row needs is not here."""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def tool(name, package):
    found = shutil.which(name)
    if not found:
        raise Missing(f"there is no {name}: apt install {package}")
    return found


class Server:
    """A server of a command line, ended with the row."""

    def __init__(self, command, port, folder):
        self.port = port
        self.child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), 10)
                return
            except OSError:
                if self.child.poll() is not None or time.monotonic() > until:
                    self.end()
                    raise RuntimeError(f"{command[0]} does not listen") from None
                time.sleep(0.02)

    def ask(self, *words):
        """The reply to a command of the server, of one line or one value."""
        request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self.socket.sendall(request)
        reply = b""
        while not reply.endswith(b"\r\n") or reply[:1] == b"$" and reply.count(b"\r\n") < 2 and reply != b"$-1\r\n":
            more = self.socket.recv(65536)
            if not more:
                raise RuntimeError("the server closed the connection")
            reply += more
        return reply

    def end(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


def shape(name):
    """Verb, connections, depth and whether the slowest of a hundred count, of a row's name."""
    _, verb, size = name.split("/")
    clients, depth = size.split("x")
    return verb.removesuffix("_p99").upper(), int(clients), int(depth), verb.endswith("_p99")


def run(benchmark, server, verb, clients, depth, requests):
    """Seconds per request, and those that one in a hundred exceeds."""
    command = [benchmark, "-h", "127.0.0.1", "-p", str(server.port), "-t", verb.lower(), "-n", str(requests), "-c", str(clients), "-P", str(depth)]
    command += ["-r", str(KEYS), "-d", str(VALUE_BYTES), "--csv"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for row in csv.DictReader(line for line in told.splitlines() if line.startswith('"')):
        if row["test"] == verb:
            return 1 / float(row["rps"]), float(row["p99_latency_ms"]) / 1e3
    raise RuntimeError(f"redis-benchmark said no number: {told}")


def fill(server):
    """The same entries on both sides."""
    for first in range(0, KEYS, 1000):
        words = [b"MSET"]
        for key in range(first, first + 1000):
            words += [b"key:%012d" % key, b"%0*d" % (VALUE_BYTES, key)]
        if server.ask(*words) != b"+OK\r\n":
            raise RuntimeError("MSET was refused")


class Rows:
    def __init__(self, options):
        self.options = options
        self.count, self.requests = (QUICK_PAIRS, QUICK_REQUESTS) if options.quick else (PAIRS, REQUESTS)
        self.measured = {}

    def measure(self, name, rival):
        verb, clients, depth, slowest = shape(name)
        key = (verb, clients, depth, rival)
        if key not in self.measured:
            self.measured[key] = self.pairs(*key)
        pairs, about = self.measured[key]
        return {"pairs": [(a[slowest], b[slowest]) for a, b in pairs], "qualifies": about}

    def pairs(self, verb, clients, depth, rival):
        benchmark, theirs = tool("redis-benchmark", "redis-tools"), tool(*RIVALS[rival])
        folder = tempfile.mkdtemp(dir=self.options.folder)
        running = []
        try:
            port = free_port()
            serve = [self.options.memlift, "pool", "serve", os.path.join(folder, "kv.pool"), "--listen", f"127.0.0.1:{port}"]
            running.append(Server(serve, port, folder))
            port = free_port()
            other = [theirs, "--port", str(port), "--dir", folder, "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
            running.append(Server(other + ["--auto-aof-rewrite-percentage", "0"], port, folder))
            for server in running:
                fill(server)
            few = self.requests if depth > 1 else self.requests // 4
            for server in running:
                run(benchmark, server, verb, clients, depth, few // 10)
            pairs = []
            for number in range(self.count):
                order = running if number % 2 == 0 else running[::-1]
                found = {server.port: run(benchmark, server, verb, clients, depth, few) for server in order}
                pairs.append(tuple(found[server.port] for server in running))
            if not all(server.ask(b"DBSIZE") == b":%d\r\n" % KEYS for server in running):
                raise RuntimeError("the two have not the same entries")
            for key in (b"key:%012d" % at for at in range(0, KEYS, 997)):
                ours, theirs = (server.ask(b"STRLEN", key) for server in running)
                if ours != theirs or ours == b":0\r\n":
                    raise RuntimeError(f"{key} differs")
            version = subprocess.run([other[0], "--version"], capture_output=True, text=True).stdout.split(" ")[2]
            return pairs, f"{other[0].rsplit('/', 1)[-1]} {version}; {clients} connections, {depth} outstanding in each; a log on the same disk, synced before the answer"
        finally:
            for server in running:
                server.end()
            shutil.rmtree(folder, ignore_errors=True)


def main():
    options = argparse.ArgumentParser(description="Rows serve/*; prints one JSON line per row.")
    options.add_argument("--memlift", required=True, help="the memlift command")
    options.add_argument("--folder", required=True, help="where both keep their files")
    options.add_argument("--row", nargs=2, action="append", default=[], metavar=("NAME", "RIVAL"))
    options.add_argument("--quick", action="store_true")
    options = options.parse_args()
    rows, failed = Rows(options), False
    for name, rival in options.row:
        line = {"name": name, "rival": rival}
        try:
            print(f"{name} beside {rival} …", file=sys.stderr, flush=True)
            line |= {"verified": True} | rows.measure(name, rival)
        except Missing as reason:
            line["missing"] = str(reason)
        except Exception as error:
            traceback.print_exc()
            failed = True
            line["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(line), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
