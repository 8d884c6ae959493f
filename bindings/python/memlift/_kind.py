# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`Kind`: a value that was taken apart already, inside plain data."""

from typing import Any


class Kind:
    """A kind of `memlift._values` and the plain data that goes with it. The native part sends it as that special value."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: Any) -> None:
        self.kind, self.value = kind, value
