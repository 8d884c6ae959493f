# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What an iterator returns: names for the compiler, which nobody calls."""

from typing import Any

from memlift.errors import BadProgramError

__all__ = ["Verdict", "compare_swap", "done", "emit", "fetch_add", "go_on", "missing", "retry"]


class Verdict:
    """What an iterator returns. Only an iterator can: call it in a function under `@iterator`."""

    def __init__(self, name: str, parameters: tuple[str, ...], text: str) -> None:
        self.name = name
        self.parameters = parameters
        self.__doc__ = text

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise BadProgramError(f"{self.name}() is a verdict: return it from a function under @iterator")

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"


done: Verdict = Verdict("done", (), "The scratchpad is the answer.")
missing: Verdict = Verdict("missing", (), "The walk is over and found nothing.")
retry: Verdict = Verdict("retry", (), "A writer was here: start again at the first node.")
go_on: Verdict = Verdict("go_on", ("address",), "Go on at the node with this address.")
emit: Verdict = Verdict(
    "emit",
    ("what", "next", "bytes"),
    "Append a field of the scratchpad (or `bytes` bytes from an offset on) to the result, then go on at `next`.",
)
compare_swap: Verdict = Verdict(
    "compare_swap", ("address", "expected", "new"), "If the eight bytes there are `expected`, they become `new`."
)
fetch_add: Verdict = Verdict("fetch_add", ("address", "addend"), "Add to the eight bytes there.")
