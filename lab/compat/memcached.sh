# SPDX-License-Identifier: Apache-2.0 OR MIT
memcached -u root -m 200 -s "$PWD/s" > log 2>&1 &
server=$!
trap 'kill $server 2>/dev/null' EXIT
python - <<'EOF'
import hashlib, socket, time
for _ in range(600):
    try:
        connection = socket.socket(socket.AF_UNIX); connection.connect("s"); break
    except OSError:
        time.sleep(0.1)
file = connection.makefile("rwb")
for i in range(120_000):
    value = b"%d " % i * 100
    file.write(b"set k%d 0 0 %d\r\n%s\r\n" % (i, len(value), value))
    if i % 100 == 99:
        file.flush()
        assert all(file.readline() == b"STORED\r\n" for _ in range(100))
digest, found = hashlib.md5(), 0
for i in range(0, 120_000, 3):
    file.write(b"get k%d\r\n" % i); file.flush()
    line = file.readline()
    if line != b"END\r\n":
        value = file.readline()[:-2]; file.readline(); found += 1
        assert value == b"%d " % i * 100
print(found)
EOF
