# SPDX-License-Identifier: Apache-2.0 OR MIT
"""An image classifier as an ONNX file, and how it is run. Every server of this example runs it by `Model`.

The graph is made here, with weights that are drawn once: what is compared is the way to the model and back. Its first dimension is free, so that several
images go through it at once.
"""

import os
import tempfile

import numpy as np

SHAPE = (3, 128, 128)
"""Shape of an image: 196,608 bytes of float32."""
CLASSES = 1000


def make(path: str) -> None:
    """Writes the model: three convolutions, a pool and a dense layer."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(2024)
    nodes, weights, last, channels = [], [], "image", SHAPE[0]
    for i, width in enumerate((16, 32, 64)):
        kernel = draw.normal(0, np.sqrt(2 / (channels * 9)), (width, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"kernel{i}"))
        nodes.append(helper.make_node("Conv", [last, f"kernel{i}"], [f"conv{i}"], strides=[2, 2], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"conv{i}"], [f"relu{i}"]))
        last, channels = f"relu{i}", width
    dense = draw.normal(0, 0.5, (channels, CLASSES)).astype(np.float32)
    weights.append(numpy_helper.from_array(dense, "dense"))
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "dense"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["images", *SHAPE])
    answer = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["images", CLASSES])
    graph = helper.make_graph(nodes, "classifier", [image], [answer], weights)
    # Opset and format of 2021, which every runtime of today reads.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    onnx.checker.check_model(model)
    # Never half a file: several servers may start at once.
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path) or ".", delete=False) as file:
        file.write(model.SerializeToString())
    os.replace(file.name, path)


class Model:
    """The classifier, loaded from its file."""

    def __init__(self, path: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(self, images: np.ndarray) -> np.ndarray:
        """Returns the probabilities of each class for each image."""
        return self._session.run(None, {"image": images})[0]


def image(seed: int) -> np.ndarray:
    """Draws an image."""
    return np.random.default_rng(seed).random(SHAPE, np.float32)
