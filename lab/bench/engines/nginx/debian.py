# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debian's own packages, unmodified: from the system, else downloaded by apt and unpacked into the user's cache.

Flow     find a file on the system ─▶ else in the cache ─▶ else apt-get download, dpkg-deb -x, rename
Layout   $XDG_CACHE_HOME/memlift/corpora/PACKAGE/, the package's own tree; lab/bench/corpora/fetch uses the same folder
Order    unpacked under another name and renamed: whoever sees the folder sees all of it
Not here root: nothing is installed and nothing of the system is touched
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


class Missing(Exception):
    """Something is not on this machine; the text says what to install."""


def cache():
    """The folder for unpacked packages."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
    return base / "memlift" / "corpora"


def package(name):
    """The folder with the package's tree."""
    folder = cache() / name
    if folder.is_dir():
        return folder
    advice = f"sudo apt install {name}"
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Missing(advice)
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache(), prefix=f"{name}.partial-") as partial:
        print(f"downloading Debian's {name} …", file=sys.stderr, flush=True)
        try:
            subprocess.run(["apt-get", "download", name], cwd=partial, check=True, capture_output=True, timeout=120)
            archive = next(Path(partial).glob("*.deb"))
            tree = Path(partial) / "tree"
            subprocess.run(["dpkg-deb", "-x", archive, tree], check=True, capture_output=True, timeout=120)
        except (subprocess.SubprocessError, StopIteration, OSError) as error:
            raise Missing(f"{advice} (apt-get download {name} did not work: {type(error).__name__})") from None
        try:
            tree.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def nginx():
    """Debian's nginx, as a path that runs here."""
    places = [Path(folder) / "nginx" for folder in (os.environ.get("PATH", "") + ":/usr/sbin").split(":") if folder]
    program = next((place for place in places if os.access(place, os.X_OK)), None)
    program = program or package("nginx") / "usr/sbin/nginx"
    try:
        subprocess.run([program, "-v"], check=True, capture_output=True, timeout=20)
    except (subprocess.SubprocessError, OSError):
        raise Missing(f"sudo apt install nginx ({program} does not run: a library is missing)") from None
    return program


def version(program):
    """What nginx says that it is, for example nginx/1.22.1."""
    said = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=20).stderr
    return said.strip().rpartition(" ")[2]


HTML = "usr/share/doc/python3.11/html"


def html():
    """All pages of Debian's python3.11-doc, one after the other, in the order of their names."""
    folder = Path("/") / HTML
    if not folder.is_dir():
        folder = package("python3.11-doc") / HTML
    pages = sorted(path for path in folder.rglob("*.html") if path.is_file())
    text = b"".join(path.read_bytes() for path in pages)
    if len(text) < 4 << 20:
        raise Missing(f"sudo apt install --reinstall python3.11-doc ({folder} has {len(text)} bytes of HTML)")
    return text
