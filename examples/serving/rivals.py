# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The same model behind FastAPI, gRPC and Ray Serve, as their documentation shows it: python rivals.py fastapi|grpc|ray PORT MODEL.onnx

Each says "ready" when it answers. `CLIENTS` has a function for each that opens a connection and returns a function from image to probabilities.
"""

import http.client
import json
import sys
from collections.abc import Callable

import numpy as np
from model import SHAPE, Model

Classify = Callable[[np.ndarray], np.ndarray]


def fastapi(port: int, path: str) -> None:
    """JSON in, JSON out. Handlers run on a pool of threads."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Image(BaseModel):
        pixels: list[list[list[float]]]

    model, app = Model(path), FastAPI()

    @app.post("/classify")
    def classify(image: Image) -> list[float]:
        return model.run(np.array([image.pixels], np.float32))[0].tolist()

    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error")
    listener = config.bind_socket()
    listener.listen()
    print("ready", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


def grpc(port: int, path: str) -> None:
    """The array's bytes in both directions, which is the fastest that gRPC does."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    model = Model(path)

    def classify(request: bytes, context: object) -> bytes:
        return model.run(np.frombuffer(request, np.float32).reshape(1, *SHAPE)).tobytes()

    server = grpc.server(ThreadPoolExecutor(8))
    handler = grpc.unary_unary_rpc_method_handler(classify)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Model", {"Classify": handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


def ray(port: int, path: str) -> None:
    """Ray Serve's own batching; the array's bytes over HTTP."""
    import time

    from ray import serve

    @serve.deployment(max_ongoing_requests=64)
    class Classifier:
        def __init__(self) -> None:
            self.model = Model(path)

        @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.0005)
        async def classify(self, bodies: list[bytes]) -> list[bytes]:
            images = np.stack([np.frombuffer(body, np.float32).reshape(SHAPE) for body in bodies])
            return [answer.tobytes() for answer in self.model.run(images)]

        async def __call__(self, request):  # noqa: ANN001, ANN204
            from starlette.responses import Response

            return Response(await self.classify(await request.body()), media_type="application/octet-stream")

    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Classifier.bind())
    print("ready", flush=True)
    while True:
        time.sleep(60)


def _http(port: int, path: str, encode: Callable, decode: Callable, kind: str) -> Classify:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def classify(image: np.ndarray) -> np.ndarray:
        connection.request("POST", path, encode(image), {"Content-Type": kind})
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {body[:200]!r}")
        return decode(body)

    return classify


def _fastapi_client(port: int) -> Classify:
    def encode(image: np.ndarray) -> bytes:
        return json.dumps({"pixels": image.tolist()}).encode()

    return _http(port, "/classify", encode, lambda body: np.array(json.loads(body), np.float32), "application/json")


def _ray_client(port: int) -> Classify:
    return _http(port, "/", np.ndarray.tobytes, lambda body: np.frombuffer(body, np.float32), "application/octet-stream")


def _grpc_client(port: int) -> Classify:
    import grpc

    call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/Model/Classify")
    return lambda image: np.frombuffer(call(image.tobytes(), timeout=60), np.float32)


SERVERS = {"fastapi": fastapi, "grpc": grpc, "ray": ray}
CLIENTS = {"fastapi": _fastapi_client, "grpc": _grpc_client, "ray": _ray_client}
NEEDS = {"fastapi": ("fastapi", "uvicorn"), "grpc": ("grpc",), "ray": ("ray.serve", "fastapi", "uvicorn")}

if __name__ == "__main__":
    SERVERS[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
