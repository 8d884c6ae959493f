# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sizes as people write them."""

import operator
import re

from memlift.errors import BadArgumentError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def in_bytes(size: int | str) -> int:
    """The number of bytes: itself, or of text like "4G" or "512M"."""
    if not isinstance(size, str):
        return operator.index(size)
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", size, re.IGNORECASE)
    if parts is None:
        raise BadArgumentError(f'a size is a number of bytes, or text like "4G" or "512M", not {size!r}')
    return int(float(parts[1]) * _UNITS[parts[2].upper()])
