# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`Kind`: a value that was taken apart already, inside plain data. `Arguments`, `END`: what some messages are as a whole."""

from collections.abc import Callable
from typing import Any


class Kind:
    """A kind of `memlift._values` and the plain data that goes with it. The native part sends it as that special value."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: Any) -> None:
        self.kind, self.value = kind, value


class Arguments:
    """Arguments of one call, as its server received them."""

    __slots__ = ("named", "positional")

    def __init__(self, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.positional, self.named = positional, named

    def call(self, handler: Callable[..., Any]) -> Any:
        """Calls the handler with them."""
        return handler(*self.positional, **self.named)


class End:
    """In the place of an item: there are no more."""

    __slots__ = ()


END = End()
