# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Pointer walks that run where the data lives: maps and lists on memory nodes, and walks of your own.

    from memlift import traverse

    with traverse.Node(memory="64M") as node, traverse.Client.connect(node) as client:
        prices = traverse.OrderedMap.load(client, table, key="time", value="price")      # Arrow, pandas, CSV, arrays
        prices[1_700_000_000] = 12
        keys, values = prices.range(1_699_990_000, 1_700_000_000)                         # numpy, one walk
        prices.avg(1_699_990_000, 1_700_000_000)                                          # computed at the node

A walk of your own is a function of a node and a scratchpad that returns a verdict:

    class Node(traverse.Struct):
        key: traverse.u64
        value: traverse.u64
        next: traverse.u64

    class Find(traverse.Struct):
        key: traverse.u64
        value: traverse.u64

    @traverse.iterator
    def find(node: Node, scratch: Find):
        if node.key == scratch.key:
            scratch.value = node.value
            return traverse.done()
        if node.next == 0:
            return traverse.missing()
        return traverse.go_on(node.next)

    client.walk(find, head, key=17).state.value

It is compiled to bytecode, verified, sent to the nodes once, and runs there as machine code. Guide: docs/guides/traverse-python.md
"""

from memlift.traverse._client import AsyncClient, Client, Pipeline, Program, Walked
from memlift.traverse._collections import Aggregate, Buckets, HashHandle, HashMap, Limits, List, ListHandle, OrderedHandle, OrderedMap
from memlift.traverse._iterator import Iterator, iterator
from memlift.traverse._load import bulk_load
from memlift.traverse._node import Node
from memlift.traverse._struct import Struct, at, i8, i16, i32, i64, u8, u16, u32, u64
from memlift.traverse._verdict import compare_swap, done, emit, fetch_add, go_on, missing, retry

__all__ = [
    "Aggregate",
    "Buckets",
    "AsyncClient",
    "Client",
    "HashHandle",
    "HashMap",
    "Iterator",
    "Limits",
    "List",
    "ListHandle",
    "Node",
    "OrderedHandle",
    "OrderedMap",
    "Pipeline",
    "Program",
    "Struct",
    "Walked",
    "at",
    "bulk_load",
    "compare_swap",
    "done",
    "emit",
    "fetch_add",
    "go_on",
    "i8",
    "i16",
    "i32",
    "i64",
    "iterator",
    "missing",
    "retry",
    "u8",
    "u16",
    "u32",
    "u64",
]
