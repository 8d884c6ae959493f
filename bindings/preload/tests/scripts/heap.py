# SPDX-License-Identifier: Apache-2.0 OR MIT
# A heap of dictionaries through JSON, files, a child, a fork and threads.
import json, os, random, subprocess, sys, tempfile, threading, socket

random.seed(1)
rows = [{"id": i, "name": "item%d" % i, "values": [random.random() for _ in range(6)]} for i in range(40000)]
text = json.dumps(rows)
assert json.loads(text) == rows
with tempfile.TemporaryFile("w+") as file:
    file.write(text)
    file.seek(0)
    assert json.load(file) == rows
assert subprocess.run(["echo", "from a child"], capture_output=True, text=True).stdout == "from a child\n"
child = os.fork()
if child == 0:
    os._exit(0 if json.loads(text) == rows else 1)
assert os.waitpid(child, 0) == (child, 0)
a, b = socket.socketpair()
data = bytearray(text.encode())
sender = threading.Thread(target=lambda: (a.sendall(data), a.close()))
sender.start()
received = bytearray(len(data))
view, done = memoryview(received), 0
while done < len(data):
    count = b.recv_into(view[done:])
    assert count
    done += count
sender.join()
assert received == data
assert json.loads(received) == rows
print("right")
