# SPDX-License-Identifier: Apache-2.0 OR MIT
# Arrays through files, pickles, threads and products.
import numpy as np, json, io, pickle, tempfile, threading
r = np.random.default_rng(1)
a = [np.arange(i, i + 500_000, dtype=np.int64) for i in range(16)]
b = [np.sort(r.integers(0, 1000, 500_000)) for _ in range(8)]
s = [int(x.sum()) for x in a]
f = tempfile.TemporaryFile()
for x in a: x.tofile(f)
f.seek(0)
for x in a: assert (np.fromfile(f, dtype=np.int64, count=500_000) == x).all()
buf = io.BytesIO(); np.save(buf, b[0]); buf.seek(0); assert (np.load(buf) == b[0]).all()
p = pickle.loads(pickle.dumps(a[3])); assert (p == a[3]).all()
out = []
def work(i): out.append(int((a[i] * 2 - a[i]).sum()) == s[i])
t = [threading.Thread(target=work, args=(i,)) for i in range(16)]
[x.start() for x in t]; [x.join() for x in t]
assert all(out) and len(out) == 16
assert [int(x.sum()) for x in a] == s
m = np.vstack(a[:6]).astype(np.float64); assert abs((m @ m.T).trace() - sum(float((x.astype(float)**2).sum()) for x in a[:6])) < 1e6 * abs(m).max()
d = json.loads(json.dumps({str(i): list(range(i, i + 50)) for i in range(20000)})); assert d["777"][5] == 782
print("right")
