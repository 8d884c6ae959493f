# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The collections by the name that pickles of earlier versions have for them.

Not here  the collections: _hash.py, _ordered.py, _list.py
"""

from memlift.traverse._handles import Aggregate, Buckets, HashHandle, Limits, ListHandle, OrderedHandle
from memlift.traverse._hash import HashMap
from memlift.traverse._list import List
from memlift.traverse._ordered import OrderedMap

__all__ = ["Aggregate", "Buckets", "HashHandle", "HashMap", "Limits", "List", "ListHandle", "OrderedHandle", "OrderedMap"]

# Pickles name the public module, which is the same in every version.
for _public in (Aggregate, Buckets, HashHandle, HashMap, Limits, List, ListHandle, OrderedHandle, OrderedMap):
    _public.__module__ = "memlift.traverse"
