# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The tutorials and recipes run as they stand there.

    ```python title="x.py"     a file that the reader saves
    ```console                 lines after "$ " are commands; the others are what they print, standard error after standard output.
                               "…" stands for anything on a line; a line that is only "…" for any number of lines

- **Place** a page runs from top to bottom in an empty folder of its own; `python` is this interpreter, `memlift` the command that was built
- **Not here** blocks without a title, and those of other languages: they need another machine, a server or root
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

DOCS = pathlib.Path(__file__).parents[3] / "docs"
PAGES = sorted([*DOCS.glob("start/*.md"), *DOCS.glob("recipes/*.md")])
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Returns each command of a console block with the lines that it shall print."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def agrees(wanted: list[str], printed: str) -> bool:
    lines = ["(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in wanted]
    return re.fullmatch("".join(lines), printed if not printed or printed.endswith("\n") else printed + "\n") is not None


@pytest.fixture
def environment(tmp_path):
    """An environment as a reader has it: `python` and `memlift` are found by their names."""
    found = shutil.which("memlift", path=os.environ["PATH"])
    built = next((folder for folder in (pathlib.Path(folder).resolve() for folder in os.environ.get("PYTHONPATH", "").split(":")) if (folder.parent / "memlift").is_file()), None)
    memlift = built.parent / "memlift" if built else found
    if not memlift:
        pytest.skip("the command was not built")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, target in (("python", sys.executable), ("memlift", memlift)):
        (folder / name).write_text(f'#!/bin/sh\nexec "{target}" "$@"\n')
        (folder / name).chmod(0o755)
    libraries = {"MEMLIFT_DROPINS": str(built.parent / "deps")} if built else {}
    python = {"PYTHONPATH": str(built)} if built else {}
    return os.environ | python | {"PATH": f"{folder}:{os.environ['PATH']}"} | libraries


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_page(page, tmp_path, environment):
    if page.stem == "pytorch":
        pytest.importorskip("torch")
    folder = tmp_path / "reader"
    folder.mkdir()
    for language, title, text in BLOCK.findall(page.read_text()):
        if title:
            (folder / title).write_text(text)
        elif language == "console":
            for command, wanted in commands(text):
                done = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
                printed = done.stdout + done.stderr
                assert done.returncode == 0, f"{page.name}: $ {command} ends with {done.returncode}\n{printed}"
                assert agrees(wanted, printed), f"{page.name}: $ {command}\n{printed}\nshould print\n" + "\n".join(wanted)


def test_each_page_runs_something():
    assert len(PAGES) >= 15
    silent = [page.name for page in PAGES if not any(language == "console" for language, _, _ in BLOCK.findall(page.read_text()))]
    # These need nginx, or another machine.
    assert silent == ["nginx.md"]


def test_dots_stand_for_anything_and_no_more():
    assert agrees(["a … c", "…", "z"], "a b c\nx\ny\nz\n")
    assert agrees(["a"], "a")
    assert not agrees(["a"], "a\nb\n")
    assert not agrees(["a … c"], "a b\n")


def test_tests_that_pages_name_are_there():
    """A claim of a table of failures names the test that shows it; a guide names tests by function or by file."""
    root = DOCS.parent
    files = [path for folder in ("ground", "services", "bindings", "cli") for path in (root / folder).rglob("*") if path.suffix in (".rs", ".py")]
    functions = {name for path in files for name in re.findall(r"(?:def|fn) (\w+)", path.read_text(errors="replace"))}
    counted = {}
    for page in ("failures.md", "guides/persist.md"):
        tables = re.findall(r"^\|(?: what happens \|.*)\n\|[-|]+\n((?:\|.*\n)+)", (DOCS / page).read_text(), re.MULTILINE)
        rows = [row for table in tables for row in table.splitlines()]
        for row in rows:
            named = re.findall(r"`([^`]+)`", row.rstrip("| ").rpartition("|")[2])
            assert named, f"{page}: no test in {row}"
            missing = [name for name in named if name not in functions and not (root / name).exists()]
            assert not missing, f"{page}: {missing}"
        counted[page] = len(rows)
    assert counted["failures.md"] > 40 and counted["guides/persist.md"] > 30
    for page in sorted(DOCS.glob("guides/*.md")):
        for name in re.findall(r"`((?:[\w/]+/)?(?:tests/\w+|test_\w+)\.(?:rs|py))`", page.read_text()):
            assert any(str(path).endswith(f"/{name}") for path in files), f"{page.name}: no file {name}"
    for name in re.findall(r"`(test_\w+)`", (DOCS / "guides/persist.md").read_text()):
        assert name in functions, f"no test {name}"


def test_every_public_name_of_the_package_has_a_docstring():
    import memlift

    bare = []
    for module in (memlift, memlift.ipc, memlift.transform, memlift.persist, memlift.traverse, memlift.zmem, memlift.zlib, memlift.errors):
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if callable(thing) and thing is not memlift.zlib.error and not (thing.__doc__ or "").strip():
                bare.append(f"{module.__name__}.{name}")
            if isinstance(thing, type) and thing.__module__.startswith("memlift"):
                for member, value in vars(thing).items():
                    if not member.startswith("_") and callable(value) and not (value.__doc__ or "").strip():
                        bare.append(f"{module.__name__}.{name}.{member}")
    assert not bare


RATIO = re.compile(r"([0-9]+\.?[0-9]*) \(`([^`]+)`, (\w+)\)")


def test_ratios_that_pages_give_are_the_recorded_ones():
    """`2.75 (`row`, rival)` in a page, and the README's table, are what `memlift-lab report` made of the record."""
    recorded = {}
    for page in (DOCS / "benchmarks").glob("*.md"):
        # The first CPU that a page has for a row is the one of the text.
        for name, rival, ratio in re.findall(r"^\| `([^`]+)` \| (\w+) \| [^|]* \| [^|]* \| ([0-9.]+) \|", page.read_text(), re.M):
            recorded.setdefault((name, rival), float(ratio))
    given = [(float(ratio), name, rival) for ratio, name, rival in RATIO.findall((DOCS / "papers.md").read_text())]
    readme = (DOCS.parent / "README.md").read_text()
    table = re.search(r"\| multiprocessing.Queue \| pyzmq \|.*\n.*\n\| ([0-9.]+) \| ([0-9.]+) \| ([0-9.]+) \|", readme)
    given += [(float(ratio), "ipc/array/134217728", rival) for ratio, rival in zip(table.groups(), ["mp_queue", "zmq", "shm_memcpy"])]
    assert len(given) >= 20
    for ratio, name, rival in given:
        assert abs(ratio / recorded[name, rival] - 1) < 0.04, (name, rival, ratio, recorded[name, rival])
