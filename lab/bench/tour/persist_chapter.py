# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Third chapter of the tour: a program is killed in the middle; what is there afterwards?

Flow     the words of Debian's python3.11-doc ─▶ a program counts them in an ordered map on a disk, one durable transaction per
         word, and says after each how far it is ─▶ kill -9 at a random moment ─▶ another process opens what is left ─▶ it must
         be exactly the first N words, with N no less than what was said ─▶ the next round goes on from there
Rival    the same in SQLite, WAL, synchronous=FULL, by Python's sqlite3: `--rival` is that program
Columns  words per second from the first word said to the kill; CPU-seconds of the program per word; milliseconds until the
         killed file is open again; words said, words there, words missing or wrong (of all rounds)
Line     one JSON object per row on stdout; progress on stderr; `missing` says what to install
Owner    files are in the folder that it is given, whose owner removes it
"""

import argparse
import json
import os
import random
import re
import resource
import select
import sqlite3
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engines" / "nginx"))

import debian
from debian import Missing

WORD_BYTES = 32
WORDS = 1_000_000
PUT = "INSERT INTO words VALUES (?, 1, ?) ON CONFLICT (word) DO UPDATE SET count = count + 1, last = excluded.last"


def emit(kind, **fields):
    print(json.dumps({"chapter": "persist", "kind": kind} | fields), flush=True)


def say(text):
    print(text, file=sys.stderr, flush=True)


def connect(path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER, last INTEGER) WITHOUT ROWID"
    )
    return connection


def rival_write(path, text):
    """The rival's program: as memlift's."""
    words = Path(text).read_text().split("\n")
    connection = connect(path)
    done = connection.execute("SELECT coalesce(sum(count), 0) FROM words").fetchone()[0]
    for number, word in enumerate(words[done:], done + 1):
        connection.execute(PUT, (word, number))
        os.write(1, b"%d\n" % number)


def rival_read(path):
    start = time.perf_counter()
    connection = connect(path)
    open_s = time.perf_counter() - start
    entries = {word: [count, last] for word, count, last in connection.execute("SELECT * FROM words")}
    print(json.dumps({"open_s": open_s, "guarantee": "", "entries": entries}))


class Side:
    """A program, its file, and what became of it."""

    def __init__(self, name, write, read):
        self.name, self.write, self.read = name, write, read
        self.rates, self.cpus, self.opens = [], [], []
        self.said, self.there, self.wrong, self.guarantee = 0, 0, 0, ""

    def round(self, words, run_s):
        """Starts it, kills it, looks what is there."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with subprocess.Popen(self.write, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as program:
            text, begin, end = b"", None, time.monotonic() + 60
            while time.monotonic() < end:
                ready, _, _ = select.select([program.stdout], [], [], max(0.0, min(end - time.monotonic(), 0.05)))
                piece = os.read(program.stdout.fileno(), 1 << 16) if ready else b""
                if ready and not piece:
                    raise RuntimeError(f"{self.name} ended by itself; what it said is above")
                text += piece
                if begin is None and b"\n" in text:
                    begin = time.monotonic()
                    end = begin + run_s
            program.kill()
            killed = time.monotonic()
            text += program.stdout.read()
        if begin is None:
            raise RuntimeError(f"{self.name} said nothing in a minute")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # What follows the last line end was cut by the kill: nobody was told that.
        said = [int(line) for line in text[: text.rfind(b"\n")].split(b"\n")]
        count = said[-1] - said[0]
        self.rates.append(count / (killed - begin))
        self.cpus.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / (count + 1))
        self.said = said[-1]
        self.look(words)

    def look(self, words):
        found = json.loads(subprocess.run(self.read, stdout=subprocess.PIPE, check=True).stdout)
        self.opens.append(found["open_s"])
        self.guarantee = found["guarantee"]
        entries = found["entries"]
        self.there = sum(count for count, _ in entries.values())
        first = words[: self.there]
        counts, last = Counter(first), {word: number for number, word in enumerate(first, 1)}
        right = {word: [count, last[word]] for word, count in counts.items()}
        self.wrong += sum(entries.get(word) != right.get(word) for word in entries.keys() | right.keys())
        self.wrong += max(0, self.said - self.there)


def text_words():
    """The words of the documentation, without its markup."""
    text = re.sub(rb"<[^>]*>", b" ", debian.html())
    words = re.findall(rb"[a-z]+", text.lower())
    return [word[:WORD_BYTES].decode() for word in words[:WORDS]]


def sides(folder, program, text):
    ours, theirs = str(folder / "words.pool"), str(folder / "words.sqlite")
    this = [sys.executable, __file__, "--rival"]
    return [
        Side("memlift", [*program, "write", ours, text], [*program, "read", ours]),
        Side("SQLite", [*this, "write", theirs, text], [*this, "read", theirs]),
    ]


def chapter(options):
    words = text_words()
    folder = Path(options.folder)
    text = folder / "words"
    text.write_text("\n".join(words))
    both = sides(folder, [options.program, *options.argument], str(text))
    rounds = 1 if options.quick else options.rounds
    for turn in range(rounds):
        say(f"round {turn + 1}: counting words, kill -9 …")
        for side in both if turn % 2 == 0 else both[::-1]:
            side.round(words, random.uniform(0.1, 0.2) if options.quick else random.uniform(1.0, 1.5))
    emit(
        "about",
        words=len(words),
        kills=rounds,
        file_system=options.file_system,
        guarantee=both[0].guarantee,
        sqlite=sqlite3.sqlite_version,
    )
    for side in both:
        emit(
            "row",
            store=side.name,
            words_per_s=statistics.median(side.rates),
            cpu_s=statistics.median(side.cpus),
            open_s=statistics.median(side.opens),
            said=side.said,
            there=side.there,
            wrong=side.wrong,
        )
    return 1 if both[0].wrong else 0


def main():
    if sys.argv[1:2] == ["--rival"]:
        {"write": rival_write, "read": rival_read}[sys.argv[2]](*sys.argv[3:])
        return 0
    options = argparse.ArgumentParser(description="Third chapter of the tour; prints one JSON line per row.")
    options.add_argument("--folder", required=True, help="where files go: an empty folder on a disk")
    options.add_argument("--file-system", default="", help="what it is called")
    options.add_argument("--program", required=True, help="the program that holds memlift's")
    options.add_argument("--argument", action="append", default=[], help="what it is called with first")
    options.add_argument("--rounds", type=int, default=4, help="kills of each side")
    options.add_argument("--quick", action="store_true")
    try:
        return chapter(options.parse_args())
    except Missing as reason:
        emit("missing", missing=str(reason))
        return 0
    except Exception as error:
        traceback.print_exc()
        emit("error", error=f"{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
