# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows nginx/*: Debian's nginx, unmodified, with and without a drop-in.

Flow     --row NAME RIVAL ─▶ two running servers ─▶ verified ─▶ runs A B, B A, … ─▶ one JSON line per row
Rows     nginx/gzipLEVEL/BYTES   seconds per request of a saturated worker; rival `stock`: no drop-in; `limit`: the same
                                 nginx without gzip serving files of the size that ours packed to
         nginx/tls12|tls13/BYTES CPU-seconds of the worker per request; `stock`; `limit`: plain HTTP
         nginx/self              how many times more CPU-seconds of the worker a request takes beside a neighbour that
                                 sweeps a buffer larger than the last-level cache: with the drop-in, and of stock. CPU
                                 and not requests per second: where the neighbour shares the client's core, a late
                                 client is no slower nginx
Both     the same configuration, files, core of the server (one worker), core of the client, connections
Not here what a ratio must reach
"""

import argparse
import json
import os
import subprocess
import sys
import traceback

import debian
import server
from debian import Missing
from server import say

FILES = 200
PAIRS, RUN_S = 25, 0.5
QUICK_PAIRS, QUICK_RUN_S = 2, 0.08
NEIGHBOUR_BYTES = 512 << 20
SELF_LEVEL, SELF_BYTES = 6, 16384

OPENSSL_CONF = """openssl_conf = init
[init]
providers = providers
alg_section = algorithms
[providers]
default = default_provider
memlift = memlift_provider
[default_provider]
activate = 1
[memlift_provider]
module = {module}
activate = 1
[algorithms]
default_properties = ?provider=memlift
"""


class Rows:
    """Starts the servers that rows need, once, and measures pairs of them."""

    def __init__(self, bench, options):
        self.bench, self.options = bench, options
        self.program = debian.nginx()
        self.corpus = debian.html()
        self.sites, self.running = {}, {}

    def drop_in(self, tls):
        """The environment that attaches ours, and what then stands in the maps."""
        path = self.options.provider if tls else self.options.libz
        if not path or not os.path.isfile(path):
            package = "memlift-openssl" if tls else "memlift-zlib"
            raise Missing(f"the drop-in is not built: cargo build --release -p {package}")
        if not tls:
            return {"LD_PRELOAD": path}, os.path.realpath(path)
        configuration = self.bench.folder / "openssl.cnf"
        configuration.write_text(OPENSSL_CONF.format(module=path))
        return {"OPENSSL_CONF": str(configuration)}, os.path.realpath(path)

    def site(self, size, random):
        key = size, random
        if key not in self.sites:
            contents = [os.urandom(size) for _ in range(FILES)] if random else server.pieces(self.corpus, size, FILES)
            self.sites[key] = self.bench.site(f"{'random' if random else 'html'}-{size}", contents)
        return self.sites[key]

    def server(self, size, level=0, tls=None, ours=False):
        """A verified server; the same one for the same question."""
        key = size, level, tls, ours
        if key not in self.running:
            environment, proof = self.drop_in(tls) if ours else (None, None)
            site = self.site(size, random=level == 0)
            one = server.Server(self.bench, self.program, site, level, tls, environment, proof)
            self.running[key] = one.verify()
        return self.running[key]

    def packed_server(self, ours, name):
        """Without gzip, with what `ours` packed as its files."""
        site = self.bench.site(f"packed-{name}", ours.packed)
        return server.Server(self.bench, self.program, site).verify()

    def pairs(self, ours, theirs):
        """Interleaved runs of both; the first of each pair alternates."""
        count, seconds = (QUICK_PAIRS, QUICK_RUN_S) if self.options.quick else (PAIRS, RUN_S)
        runs = []
        for index in range(count):
            if index % 2 == 0:
                first, second = ours.load(seconds), theirs.load(seconds)
                runs.append((first, second))
            else:
                first, second = theirs.load(seconds), ours.load(seconds)
                runs.append((second, first))
        return runs

    def measure(self, name, rival):
        """The fields of a row."""
        parts = name.split("/")
        if name == "nginx/self":
            return self.slowdown()
        kind, size = parts[1], int(parts[2])
        if kind.startswith("gzip"):
            level = int(kind[len("gzip") :])
            ours = self.server(size, level, ours=True)
            theirs = self.packed_server(ours, f"{level}-{size}") if rival == "limit" else self.server(size, level)
            runs = self.pairs(ours, theirs)
            pairs = [tuple(run["seconds"] / run["requests"] for run in pair) for pair in runs]
            packed = ours.wire_bytes(), theirs.wire_bytes()
            remark = f"bytes per response {packed[0]:.0f} : {packed[1]:.0f} (× {packed[0] / packed[1]:.3f})"
        else:
            tls = {"tls12": "tls1.2", "tls13": "tls1.3"}[kind]
            ours = self.server(size, tls=tls, ours=True)
            theirs = self.server(size) if rival == "limit" else self.server(size, tls=tls)
            runs = self.pairs(ours, theirs)
            pairs = [tuple(cpu_s(run) for run in pair) for pair in runs]
            packed = ours.wire_bytes(), theirs.wire_bytes()
            rates = [median([pair[side]["requests"] / pair[side]["seconds"] for pair in runs]) for side in (0, 1)]
            remark = f"CPU-seconds of the worker per request; {runs[0][0]['cipher']}; req/s {rates[0]:.0f} : {rates[1]:.0f}"
        return {
            "pairs": pairs,
            "cpu": [median([cpu_s(pair[side]) for pair in runs]) for side in (0, 1)],
            "count": {
                "bytes_per_response_ours": round(packed[0]),
                "bytes_per_response_theirs": round(packed[1]),
                "size_permille": round(1000 * packed[0] / packed[1]),
                "complaints": len(ours.complaints()) + len(theirs.complaints()),
            },
            "qualifies": f"{remark}; {self.both()}",
            "verified": True,
        }  # fmt: skip

    def both(self):
        cores = server.cores()
        return (
            f"{debian.version(self.program)}; one worker on core {cores[0]}, client on core {cores[1]}; "
            f"{server.CONNECTIONS} connections kept alive; {FILES} files"
        )

    def slowdown(self):
        """CPU-seconds per request beside the neighbour over those without it, ours and stock."""
        both = [self.server(SELF_BYTES, SELF_LEVEL, ours=ours) for ours in (True, False)]
        count, seconds = (QUICK_PAIRS, QUICK_RUN_S) if self.options.quick else (PAIRS, RUN_S)
        core = server.cores()[2]
        pairs, cpu = [], ([], [])

        def beside(one):
            with Neighbour(self.bench, core):
                return one.load(seconds)

        for index in range(count):
            slow = [0.0, 0.0]
            for side in (0, 1) if index % 2 == 0 else (1, 0):
                if index // 2 % 2 == 0:
                    alone, contended = both[side].load(seconds), beside(both[side])
                else:
                    contended, alone = beside(both[side]), both[side].load(seconds)
                slow[side] = cpu_s(contended) / cpu_s(alone)
                cpu[side].append(cpu_s(contended))
            pairs.append(tuple(slow))
        where = "a core of its own" if core not in server.cores()[:2] else "the client's core (there is no third)"
        return {
            "pairs": pairs,
            "cpu": [median(side) for side in cpu],
            "count": {},
            "qualifies": f"CPU-seconds of the worker per request; gzip {SELF_LEVEL}, {SELF_BYTES} bytes; the neighbour writes through {NEIGHBOUR_BYTES >> 20} "
            f"MiB, on {where}; {self.both()}",
            "verified": True,
        }


def cpu_s(run):
    return run["cpu_s"] / run["requests"]


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


class Neighbour:
    """A process that sweeps more memory than any cache holds, while this is entered."""

    def __init__(self, bench, core):
        command = [bench.load, "sweep", str(NEIGHBOUR_BYTES)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=server.bound(core))
        self.process.stdout.readline()  # it has touched all of its memory

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def main():
    options = argparse.ArgumentParser(description="Rows nginx/*; prints one JSON line per row.")
    options.add_argument("--row", nargs=2, action="append", default=[], metavar=("NAME", "RIVAL"))
    options.add_argument("--libz", default="", help="the libz drop-in")
    options.add_argument("--provider", default="", help="the OpenSSL provider")
    options.add_argument("--quick", action="store_true")
    options = options.parse_args()
    server.end_orderly()
    failed = False
    with server.Bench() as bench:
        rows, absent = None, None
        try:
            rows = Rows(bench, options)
        except Missing as reason:
            absent = str(reason)
        for name, rival in options.row:
            line = {"name": name, "rival": rival}
            say(f"{name} against {rival} …")
            try:
                line |= {"missing": absent} if absent else rows.measure(name, rival)
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
