# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The five workloads that Rocket (arXiv 2601.06331) is measured with: what the client does before a call, what the server does in it,
and what the client does with the answer. Real libraries; weights and data are generated, so nothing is fetched.

Flow     request(seed): made and preprocessed by the client, one array ─▶ serve()(request): one array, in the server ─▶ finish(answer): what
         the client wanted to know
Sizes    those of the paper where it gives them; `items` is how many images, rows, edges or queries a request holds
Order    the same seed gives the same request, and the same request the same answer, in every process and over every transport
Not here how requests travel, and how often (run.py)
"""

import abc
import functools
import importlib.util
import os

import numpy as np


def threads():
    """Threads that a server works with: a client wants a core, too."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


class Workload(abc.ABC):
    name = ""
    modules = ()
    items = 0
    quick_items = 0

    def __init__(self, items=None):
        self.items = items or self.items

    @classmethod
    def missing(cls):
        """The modules that are not installed."""
        return [module for module in cls.modules if importlib.util.find_spec(module) is None]

    @abc.abstractmethod
    def request(self, seed):
        """One array, the same for the same seed."""

    @abc.abstractmethod
    def serve(self):
        """The server's side: a function from a request to its answer."""

    @abc.abstractmethod
    def finish(self, answer):
        """What the client wanted to know."""


def images(seed, count, side):
    """Pictures as a decoder leaves them, a little larger than wanted: smooth in both directions, 8 bits per colour."""
    draw = np.random.default_rng(seed)
    coarse = draw.integers(0, 256, (count, 9, 9, 3), np.uint8)
    large = side + side // 8
    at = np.linspace(0, 8, large).astype(np.intp)
    return coarse[:, at][:, :, at]


def prepared(pictures, side):
    """Cropped to the middle, normalised, colours first: what networks take."""
    edge = (pictures.shape[1] - side) // 2
    cut = pictures[:, edge : edge + side, edge : edge + side]
    out = np.empty((len(pictures), 3, side, side), np.float32)
    for colour, (mean, spread) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))):
        np.multiply(cut[..., colour], np.float32(1 / (255 * spread)), out=out[:, colour])
        out[:, colour] -= np.float32(mean / spread)
    return out


class Network(Workload):
    """Images to a network in ONNX Runtime, labels back."""

    modules = ("onnx", "onnxruntime")
    side = 0
    graph = ""

    def request(self, seed):
        return prepared(images(seed, self.items, self.side), self.side)

    def serve(self):
        import networks
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        session = onnxruntime.InferenceSession(
            getattr(networks, self.graph)(self.side), options, providers=["CPUExecutionProvider"]
        )
        return lambda batch: session.run(None, {"images": batch})[0]

    def finish(self, answer):
        return np.argmax(answer, axis=1)


class MobileNet(Network):
    name, side, graph, items, quick_items = "mobilenetv2", 224, "mobilenet_v2", 80, 2


class ViT(Network):
    """The shape of ViT-Ti/16 at 384 pixels; the paper's requests of 200 images, 354 MB."""

    name, side, graph, items, quick_items = "vit", 384, "vision_transformer", 200, 1


class XGBoost(Workload):
    """Rows of 30 features, as many as the breast-cancer data have, to boosted trees; a probability for each back."""

    name, modules, items, quick_items = "xgboost", ("xgboost",), 200_000, 5_000
    COLUMNS = 30

    def request(self, seed):
        draw = np.random.Generator(np.random.SFC64(seed))
        rows = draw.random((self.items, self.COLUMNS), np.float32)
        rows *= np.linspace(0.1, 900, self.COLUMNS, dtype=np.float32)
        return rows

    def serve(self):
        import xgboost

        draw = np.random.default_rng(7)
        rows = draw.random((2_000, self.COLUMNS)).astype(np.float32) * np.linspace(0.1, 900, self.COLUMNS, dtype=np.float32)
        target = rows[:, 3] * 2 + rows[:, 20] > rows[:, 27] * 0.8
        settings = {"objective": "binary:logistic", "max_depth": 4, "nthread": threads(), "seed": 1}
        booster = xgboost.train(settings, xgboost.DMatrix(rows, target), num_boost_round=20)
        return lambda batch: booster.inplace_predict(batch, validate_features=False)

    def finish(self, answer):
        return np.flatnonzero(answer > 0.5)[:100]


class PageRank(Workload):
    """A graph of a million vertices, as a list of edges, to ten rounds of PageRank; every vertex's rank back."""

    name, items, quick_items = "pagerank", 10_000_000, 50_000
    ROUNDS = 10

    def __init__(self, items=None):
        super().__init__(items)
        self.scale = 20 if self.items > 1_000_000 else 12

    def request(self, seed):
        import reference

        return reference.rmat(self.scale, self.items, seed)

    def serve(self):
        vertices, damping = 1 << self.scale, 0.85

        def rank(edges):
            start, end = edges[:, 0], edges[:, 1]
            degrees = np.bincount(start, minlength=vertices)
            share = np.divide(1.0, degrees, where=degrees > 0, out=np.zeros(vertices))
            ranks = np.full(vertices, 1 / vertices)
            for _ in range(self.ROUNDS):
                dangling = ranks[degrees == 0].sum() / vertices
                given = np.bincount(end, weights=(ranks * share)[start], minlength=vertices)
                ranks = (1 - damping) / vertices + damping * (given + dangling)
            return ranks

        return rank

    def finish(self, answer):
        best = np.argpartition(answer, -10)[-10:]
        return best[np.argsort(-answer[best], kind="stable")]


class Search(Workload):
    """Embeddings to an approximate index of vectors; for each the three nearest images back, 320 MB of them."""

    name, modules, items, quick_items = "search", ("faiss",), 200, 4
    DIMENSIONS, VECTORS, NEAREST = 1280, 20_000, 3
    PICTURE = (211, 211, 3)
    GALLERY = 256
    """Pictures that are different; vector n belongs to picture n modulo this."""

    @staticmethod
    @functools.cache
    def _vectors(seed, count):
        return np.random.Generator(np.random.SFC64(seed)).standard_normal((count, Search.DIMENSIONS), np.float32)

    def request(self, seed):
        known = self._vectors(11, self.VECTORS)
        draw = np.random.default_rng(seed)
        queries = known[draw.integers(0, self.VECTORS, self.items)]
        return queries + np.float32(0.3) * self._vectors(seed + 1, self.items)

    def serve(self):
        import faiss

        faiss.omp_set_num_threads(threads())
        known = self._vectors(11, self.VECTORS)
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(self.DIMENSIONS), self.DIMENSIONS, 64)
        index.train(known[:4_000])
        index.add(known)
        index.nprobe = 8
        gallery = np.random.default_rng(12).random((self.GALLERY, *self.PICTURE), np.float32)

        def search(queries):
            _, found = index.search(np.ascontiguousarray(queries), self.NEAREST)
            return gallery[found % self.GALLERY]

        return search

    def finish(self, answer):
        return answer[:, :, 0, 0, 0].copy()


ALL = {kind.name: kind for kind in (MobileNet, XGBoost, PageRank, Search, ViT)}


def operations(name, items):
    """What a server process of this workload can do."""
    return {"run": ALL[name](items).serve()}
