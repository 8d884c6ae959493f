#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# zlib's own programs and Python's own tests on libmemlift_z.so. What is missing is said in one line and skipped.
#
#   ZLIB_SOURCE   a folder with zlib 1.2.13's source (Debian: apt-get source zlib)
#   PYTHON_TESTS  a folder that holds Python's package `test` with test_zlib.py (Debian: libpython3.11-testsuite,
#                 /usr/lib/python3.11; its `test/support` has to be in the same folder)
#   PYTHON        a Python whose zlib is the system's libz.so.1 (default /usr/bin/python3)
#
# Usage: tests/upstream.sh target/release/libmemlift_z.so
set -eu
library=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$library" "$work/libz.so.1"
failed=0

ours() { LD_LIBRARY_PATH="$work" "$@"; }
check() {
    name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        if grep -q 'version information' "$work/log"; then echo "FAILED: $name: symbol versions"; failed=1; else echo "ok: $name"; fi
    else
        echo "FAILED: $name"
        tail -20 "$work/log"
        failed=1
    fi
}

if [ -e "${ZLIB_SOURCE:-}/test/example.c" ] && command -v cc >/dev/null; then
    for program in example minigzip; do # infcover looks into the state of zlib's own inflate
        cc -O1 -I"$ZLIB_SOURCE" -o "$work/$program" "$ZLIB_SOURCE/test/$program.c" "$work/libz.so.1"
        cc -O1 -D_LARGEFILE64_SOURCE=1 -D_FILE_OFFSET_BITS=64 -I"$ZLIB_SOURCE" -o "$work/${program}64" \
            "$ZLIB_SOURCE/test/$program.c" "$work/libz.so.1"
    done
    cd "$work"
    for program in example example64; do
        check "zlib's $program" ours "./$program"
        check "zlib's $program, preloaded" env LD_PRELOAD="$library" "./$program"
    done
    for program in minigzip minigzip64; do
        for level in -1 -6 -9 -h -r; do
            check "zlib's $program $level" sh -c "LD_LIBRARY_PATH=$work ./$program $level <'$ZLIB_SOURCE/zlib.h' >out.gz &&
                gzip -t out.gz && LD_LIBRARY_PATH=$work ./$program -d <out.gz | cmp - '$ZLIB_SOURCE/zlib.h'"
        done
    done
else
    echo "not run: zlib's programs (set ZLIB_SOURCE; cc)"
fi

python=${PYTHON:-/usr/bin/python3}
if [ -e "${PYTHON_TESTS:-}/test/test_zlib.py" ] && "$python" -c 'import zlib' 2>/dev/null; then
    cat >"$work/run.py" <<PYTHON_END
import sys
sys.path.insert(0, sys.argv.pop(1))
from test.libregrtest.main import main
main()
PYTHON_END
    cd "$work"
    for tests in test_zlib test_gzip test_zipimport test_shutil; do
        check "Python's $tests" ours "$python" run.py "$PYTHON_TESTS" "$tests"
        check "Python's $tests, preloaded" env LD_PRELOAD="$library" "$python" run.py "$PYTHON_TESTS" "$tests"
    done
else
    echo "not run: Python's tests (set PYTHON_TESTS)"
fi
exit $failed
