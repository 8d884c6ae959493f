# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Serves an ONNX model to processes of this machine: python server.py ADDRESS MODEL.onnx [batch]

Start it several times, and the clients are spread over the servers. A client:

    with memlift.ipc.Client(ADDRESS, wait=5) as client:
        probabilities = client.call("classify", image)      # a float32 array of 3 × 128 × 128

Images come in memory that both processes map. `batch` is the most images that go through the model at once (8): those of calls that are open at the same time.
"""

import signal
import sys

import memlift
import numpy as np
from model import Model


def main(address: str, path: str, batch: int = 8) -> None:
    with memlift.ipc.Server(address, shared=True, ready=False) as server:
        # From here on it listens. Clients go to servers that are ready, as long as there are some.
        server.start()
        model = Model(path)

        @server.batched("classify", max_batch=batch, max_delay=0.0005)
        def classify(images: list[np.ndarray]) -> np.ndarray:
            return model.run(np.stack(images))

        server.ready()
        signal.signal(signal.SIGTERM, lambda *_: server.stop(drain=30))
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
