# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Networks in ONNX with the shapes of published ones and generated weights: their work and their memory traffic, not their answers.

Flow     Graph collects nodes and weights ─▶ serialised, with the batch's size left open ─▶ ONNX Runtime
Source   Sandler et al., MobileNetV2 (arXiv 1801.04381), table 2; Dosovitskiy et al., An Image is Worth 16x16 Words (arXiv 2010.11929),
         with the tiny size of Touvron et al. (arXiv 2012.12877), table 1
"""

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

CLASSES = 1000


class Graph:
    """Nodes in the order in which they are added; each method gives the name of what it computes."""

    def __init__(self, side):
        self.side, self.nodes, self.weights = side, [], []
        self.draw = np.random.default_rng(1)

    def add(self, operator, *inputs, **attributes):
        name = f"{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, array):
        name = f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def weight(self, *shape, inputs):
        """Numbers whose sums over `inputs` of them keep their size from layer to layer."""
        return self.constant((self.draw.standard_normal(shape) * np.sqrt(2 / inputs)).astype(np.float32))

    def zeros(self, count):
        return self.constant(np.zeros(count, np.float32))

    def bytes(self, output):
        wanted = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", CLASSES])
        images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, self.side, self.side])
        graph = helper.make_graph(self.nodes, "network", [images], [wanted], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        checker.check_model(model)
        return model.SerializeToString()


def mobilenet_v2(side):
    """3.4 million weights, 300 million multiplications per image of 224 pixels."""
    graph = Graph(side)
    low, high = graph.constant(np.float32(0)), graph.constant(np.float32(6))

    def convolved(value, inputs, outputs, kernel, stride=1, groups=1, clipped=True):
        weight = graph.weight(outputs, inputs // groups, kernel, kernel, inputs=inputs // groups * kernel * kernel)
        value = graph.add(
            "Conv", value, weight, graph.zeros(outputs), strides=[stride] * 2, pads=[kernel // 2] * 4, group=groups
        )
        return graph.add("Clip", value, low, high) if clipped else value

    value, inputs = convolved("images", 3, 32, 3, stride=2), 32
    for expansion, outputs, repeats, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for repeat in range(repeats):
            step = stride if repeat == 0 else 1
            wide, inner = inputs * expansion, value
            if expansion > 1:
                inner = convolved(inner, inputs, wide, 1)
            inner = convolved(inner, wide, wide, 3, stride=step, groups=wide)
            inner = convolved(inner, wide, outputs, 1, clipped=False)
            value = graph.add("Add", value, inner) if step == 1 and inputs == outputs else inner
            inputs = outputs
    value = graph.add("GlobalAveragePool", convolved(value, 320, 1280, 1))
    value = graph.add("Flatten", value)
    return graph.bytes(graph.add("Gemm", value, graph.weight(1280, CLASSES, inputs=1280), graph.zeros(CLASSES)))


def vision_transformer(side, width=192, layers=12, heads=3, patch=16):
    """Patches of 16 pixels, twelve layers of attention; at 384 pixels 577 tokens of 192 numbers per image."""
    graph = Graph(side)
    tokens, head = (side // patch) ** 2, width // heads

    def shaped(value, *shape):
        return graph.add("Reshape", value, graph.constant(np.array(shape, np.int64)))

    def normal(value):
        ones = graph.constant(np.ones(width, np.float32))
        return graph.add("LayerNormalization", value, ones, graph.zeros(width), axis=-1)

    def linear(value, inputs, outputs):
        value = graph.add("MatMul", value, graph.weight(inputs, outputs, inputs=2 * inputs))
        return graph.add("Add", value, graph.zeros(outputs))

    def gelu(value):
        inner = graph.add("Erf", graph.add("Mul", value, graph.constant(np.float32(0.5**0.5))))
        half = graph.add("Mul", value, graph.constant(np.float32(0.5)))
        return graph.add("Mul", half, graph.add("Add", inner, graph.constant(np.float32(1))))

    weight = graph.weight(width, 3, patch, patch, inputs=3 * patch * patch)
    value = graph.add("Conv", "images", weight, graph.zeros(width), strides=[patch] * 2)
    value = graph.add("Transpose", shaped(value, 0, width, tokens), perm=[0, 2, 1])
    # The token of the class is the mean of the patches: the same work, without repeating a weight for each image.
    mean = graph.add("ReduceMean", value, axes=[1], keepdims=1)
    value = graph.add("Concat", mean, value, axis=1)
    value = graph.add("Add", value, graph.weight(1, tokens + 1, width, inputs=width))
    for _ in range(layers):
        inner, split = normal(value), []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            split.append(graph.add("Transpose", shaped(linear(inner, width, width), 0, tokens + 1, heads, head), perm=perm))
        query, key, content = split
        scores = graph.add("Mul", graph.add("MatMul", query, key), graph.constant(np.float32(head**-0.5)))
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), content)
        mixed = shaped(graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), 0, tokens + 1, width)
        value = graph.add("Add", value, linear(mixed, width, width))
        value = graph.add("Add", value, linear(gelu(linear(normal(value), width, 4 * width)), 4 * width, width))
    first = graph.add("Gather", normal(value), graph.constant(np.int64(0)), axis=1)
    return graph.bytes(graph.add("Gemm", first, graph.weight(width, CLASSES, inputs=width), graph.zeros(CLASSES)))
