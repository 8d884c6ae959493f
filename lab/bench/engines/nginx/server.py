# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One nginx of this run: its configuration, its files, its process, and what its answers are.

Flow     Site (files of one size) ─▶ Server (a configuration, with or without a drop-in) ─▶ verify (every file
         fetched, unpacked, compared; the drop-in proven from the process's maps) ─▶ load (load.c keeps it busy)
Layout   everything in one temporary folder: conf, files, certificate, logs; one worker; loopback; access_log off
Order    the kernel ends nginx when this process ends (PR_SET_PDEATHSIG), nginx's master ends its worker
Both     a drop-in is an environment variable, nothing else differs between two servers of a pair: LD_PRELOAD for
         libz, OPENSSL_CONF for the provider
"""

import ctypes
import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from debian import Missing

HERE = Path(__file__).resolve().parent
LIBC = ctypes.CDLL(None)
CONNECTIONS = 32


def cores():
    """The core of the server, that of the client, and one for a neighbour: three different ones where there are three."""
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[1 % len(available)], available[2 % len(available) if len(available) > 2 else -1]


def bound(core):
    """What a child does before it becomes its program: it dies with this process, and stays on `core`."""

    def before():
        LIBC.prctl(1, signal.SIGTERM)
        os.sched_setaffinity(0, {core})

    return before


class Bench:
    """The temporary folder of a run and its load generator; ends every server it started."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="memlift-bench-nginx-"))
        self.folder.chmod(0o755)  # nginx's worker may be another user
        self.servers = []
        self.load = self.folder / "load"
        shutil.copy(HERE / "load", self.load)
        self.load.chmod(0o755)
        self.made_certificate = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def certificate(self):
        """A self-signed certificate and its key, of this run only."""
        if self.made_certificate is None:
            key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
            command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
            command += ["-subj", "/CN=localhost", "-days", "2", "-keyout", key, "-out", certificate]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=60)
            except (OSError, subprocess.SubprocessError):
                raise Missing("sudo apt install openssl") from None
            self.made_certificate = certificate, key
        return self.made_certificate

    def site(self, name, contents):
        """A folder of files that servers can serve."""
        return Site(self.folder / name, contents)


class Site:
    """Files by number, and their contents."""

    def __init__(self, folder, contents):
        self.folder, self.contents = folder, contents
        folder.mkdir()
        for index, content in enumerate(contents):
            (folder / f"{index}.html").write_bytes(content)

    def names(self):
        return [f"/{index}.html" for index in range(len(self.contents))]


def pieces(corpus, size, count):
    """`count` pieces of exactly `size` bytes, evenly spaced over the corpus."""
    step = (len(corpus) - size) // count
    return [corpus[index * step : index * step + size] for index in range(count)]


class Server:
    """A running nginx. `level` 0: no gzip; `tls`: None, "tls1.2" or "tls1.3"; `environment`: the drop-in."""

    def __init__(self, bench, program, site, level=0, tls=None, environment=None, proof=None):
        self.bench, self.program, self.site, self.level, self.tls = bench, program, site, level, tls
        self.environment, self.proof = environment or {}, proof
        self.process, self.packed = None, []
        self.folder = bench.folder / f"server-{len(bench.servers)}"
        self.folder.mkdir()
        bench.servers.append(self)
        self.port = free_port()
        (self.folder / "nginx.conf").write_text(self.configuration())
        self.start()

    def configuration(self):
        listen = f"listen 127.0.0.1:{self.port} backlog=1024"
        lines = [f"{listen}{' ssl' if self.tls else ''};", f"root {self.site.folder};"]
        if self.tls:
            certificate, key = self.bench.certificate()
            lines += [f"ssl_certificate {certificate};", f"ssl_certificate_key {key};"]
            if self.tls == "tls1.2":
                lines += ["ssl_protocols TLSv1.2;", "ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256;"]
            else:
                lines += ["ssl_protocols TLSv1.3;", "ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;"]
        if self.level:
            lines += ["gzip on;", f"gzip_comp_level {self.level};", "gzip_min_length 1;"]
        folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        temporary = "\n".join(f"  {name}_temp_path {self.folder}/{name};" for name in folders)
        inner = "\n".join(f"    {line}" for line in lines)
        return (
            f"daemon off;\nworker_processes 1;\npid {self.folder}/pid;\nerror_log {self.folder}/error.log warn;\n"
            "events { worker_connections 2048; }\n"
            "http {\n"
            "  access_log off;\n  default_type text/html;\n  sendfile on;\n  tcp_nopush on;\n"
            f"  keepalive_requests 1000000000;\n  keepalive_timeout 300;\n{temporary}\n"
            f"  server {{\n{inner}\n  }}\n}}\n"
        )

    def start(self):
        """Starts it and waits until it listens."""
        command = [self.program, "-e", self.folder / "error.log", "-p", self.folder, "-c", self.folder / "nginx.conf"]
        environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "OPENSSL_CONF")}
        said = open(self.folder / "said.log", "wb")
        self.process = subprocess.Popen(
            command, env=environment | self.environment, stdout=said, stderr=said, stdin=subprocess.DEVNULL,
            preexec_fn=bound(cores()[0]),
        )  # fmt: skip
        said.close()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"nginx does not start: {self.said()}")

    def said(self):
        """What it complained about."""
        texts = [(self.folder / name).read_text(errors="replace") for name in ("said.log", "error.log")
                 if (self.folder / name).exists()]  # fmt: skip
        return " ".join("".join(texts).split())[-600:]

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def worker(self):
        """The process that does the work."""
        master = self.process.pid
        children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        if len(children) != 1:
            raise RuntimeError(f"nginx has {len(children)} workers: {self.said()}")
        return int(children[0])

    def connection(self):
        if not self.tls:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        context = ssl.create_default_context(cafile=str(self.bench.certificate()[0]))
        context.check_hostname = False
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=context)

    def verify(self):
        """Fetches every file, unpacks it, compares it; writes down what each measures on the wire."""
        connection, self.packed = self.connection(), []
        for name, content in zip(self.site.names(), self.site.contents):
            connection.request("GET", name, headers={"Accept-Encoding": "gzip"} if self.level else {})
            answer = connection.getresponse()
            body = answer.read()
            encoding = answer.getheader("Content-Encoding")
            if answer.status != 200 or encoding != ("gzip" if self.level else None):
                raise RuntimeError(f"{name}: status {answer.status}, encoding {encoding}")
            try:
                whole = gzip.decompress(body) if self.level else body
            except (OSError, EOFError, zlib.error) as error:
                raise RuntimeError(f"{name}: {error}") from None
            if whole != content:
                raise RuntimeError(f"{name}: other bytes came than were served")
            self.packed.append(body)
        connection.close()
        listing = [f"{name} {len(body)}\n" for name, body in zip(self.site.names(), self.packed)]
        (self.folder / "files").write_text("".join(listing))
        if self.proof and self.proof not in Path(f"/proc/{self.worker()}/maps").read_text():
            raise RuntimeError(f"{self.proof} is not in nginx's maps: {self.said()}")
        return self

    def wire_bytes(self):
        """Mean size of a body on the wire."""
        return sum(map(len, self.packed)) / len(self.packed)

    def load(self, seconds):
        """Keeps it busy; gives what load.c counted. Every answer must have been right."""
        command = [self.bench.load, self.port, CONNECTIONS, seconds, self.folder / "files", self.worker()]
        command += (["gzip"] if self.level else []) + ([self.tls] if self.tls else [])
        environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "OPENSSL_CONF")}
        done = subprocess.run(
            [str(word) for word in command], env=environment, capture_output=True, text=True, timeout=60 + seconds,
            preexec_fn=bound(cores()[1]),
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{done.stderr.strip()}; nginx: {self.said()}")
        counted = json.loads(done.stdout)
        if counted["wrong"] or not counted["requests"]:
            raise RuntimeError(f"{counted['wrong']} of {counted['requests']} answers were wrong; nginx: {self.said()}")
        return counted

    def complaints(self):
        """Lines of its error log: a drop-in that nginx finds fault with stands there."""
        path = self.folder / "error.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [line for line in lines if "[alert]" in line or "[error]" in line or "[crit]" in line or "[emerg]" in line]


def end_orderly():
    """A signal to end becomes SystemExit, so that servers are stopped and the folder goes."""

    def end(number, _):
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    LIBC.prctl(1, signal.SIGTERM)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def say(text):
    print(text, file=sys.stderr, flush=True)
