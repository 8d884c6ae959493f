# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The tests of redis-py on `memlift pool serve`.

Goal    what the server has of Redis (strings, keys, connections, transactions) passes; what fails is named here with its reason
Method  `tools/setup redis-py` fetches redis-py and its own tests, which run as they are, in both versions of the protocol. A test that
        fails without being named is a failure, and so is one that passes although it is named
Source  redis-py 8.1
"""

import re
import shutil
import subprocess
import xml.etree.ElementTree
from pathlib import Path

import pytest

from memlift import _native

ROOT = Path(__file__).parents[3]
FILES = ["test_commands.py", "test_pipeline.py", "test_encoding.py", "test_asyncio/test_pipeline.py", "test_asyncio/test_encoding.py"]

NOT_OFFERED = {
    "lists": "LPUSH LPUSHX RPUSH RPUSHX",
    "sets": "SADD",
    "hashes": "HINCRBY HINCRBYFLOAT HMSET HRANDFIELD HSET HSETNX",
    "sorted sets": "ZADD ZMSCORE",
    "bits of strings": "BITCOUNT BITFIELD BITOP BITPOS GETBIT SETBIT",
    "streams": "XACK XADD XDEL XGROUP XLEN XTRIM",
    "places on earth, and counts of different things": "GEOADD GEOPOS PFADD",
    "users and passwords": "ACL",
    "copies of the whole store by command": "BGSAVE LASTSAVE",
    "servers that follow another": "REPLICAOF ROLE",
    "a look into the server of Redis": "LATENCY LOLWUT MEMORY MONITOR",
}
"""Commands of Redis that are none here, and what they are for."""

VERBS = {
    "CLIENT KILL|PAUSE|UNPAUSE|UNBLOCK|REPLY": "clients do not stop each other",
    "CLIENT TRACKING|TRACKINGINFO|GETREDIR": "nothing is said to clients that did not ask",
    "COMMAND GETKEYSANDFLAGS": "COMMAND GETKEYS and COMMAND INFO say it",
    "CONFIG SET": "options are given to the server at its start",
}
"""Second words of commands that are not there."""

NAMED = {
    "test_client_setinfo": "it connects to port 6379",
    "test_client_setinfo_with_driver_info": "it connects to port 6379",
    "test_psync": "it connects to port 6380",
    "test_command": "counts the commands of Redis",
    "test_command_count": "counts the commands of Redis",
    "test_command_list": "counts the commands of Redis",
    "test_command_getkeys": "asks for commands that are none here",
    "test_config_get": "counts the options of Redis",
    "test_config_get_multi_params": "asks for an option of hashes",
    "test_copy_to_another_database": "there is one database",
    "test_select": "there is one database",
    "test_slowlog_get": "there is no list of slow commands",
    "test_slowlog_get_limit": "there is no list of slow commands",
    "test_slowlog_length": "there is no list of slow commands",
}


def is_expected(name, text):
    """A failure that says which command is missing, or one that is named."""
    commands = {command for group in NOT_OFFERED.values() for command in group.split()}
    verbs = {f"{first.split()[0]} {verb}" for first in VERBS for verb in first.split()[1].split("|")}
    if unknown := re.search(r"unknown command '(\w+)'", text):
        return unknown[1].upper() in commands
    if unknown := re.search(r"unknown subcommand '(\w+)'. Try COMMAND DOCS (\w+)", text):
        return f"{unknown[2]} {unknown[1].upper()}" in verbs
    return name in NAMED


@pytest.fixture(scope="module")
def redis_py():
    found = subprocess.run([ROOT / "tools/setup", "redis-py"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@pytest.fixture
def served(tmp_path):
    built = Path(_native.__file__).resolve().parent / "memlift"
    command = str(built) if built.exists() else shutil.which("memlift", path=ROOT / "target/release")
    arguments = [command, "pool", "serve", str(tmp_path / "served.pool"), "--listen", "127.0.0.1:0", "--copies", str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        yield re.search(r"127\.0\.0\.1:\d+", server.stdout.readline())[0]
        server.terminate()
        assert server.wait(60) == 0


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["2", "3"])
def test_redis_py(redis_py, served, protocol, tmp_path):
    python, source = redis_py
    report = tmp_path / "report.xml"
    arguments = ["--redis-url", f"redis://{served}/0", "--protocol", protocol, "--junitxml", str(report), "-p", "no:cacheprovider"]
    run = [python, "-m", "pytest", "-q", "--tb=line", "-m", "not onlycluster and not redismod", *arguments]
    done = subprocess.run([*run, *(f"tests/{file}" for file in FILES)], cwd=source, capture_output=True, text=True, timeout=900)
    assert report.exists(), done.stdout + done.stderr
    passed, wrong = set(), []
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = case.get("name").split("[")[0]
        faults = [*case.findall("failure"), *case.findall("error")]
        texts = [(fault.get("message") or "") + (fault.text or "") for fault in faults]
        wrong += [f"{case.get('classname')}::{name}: {text[:300]}" for text in texts if not is_expected(name, text)]
        if not faults and case.find("skipped") is None:
            passed.add(name)
    assert not wrong, "\n".join(wrong)
    assert len(passed) > 200, "fewer mean that the tests were not found where they were"
    assert not passed & NAMED.keys(), "take it from the list of failures"
