# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Takes the native part of the wheel `memlift-server`, which has replicas of pools, in place of the package's own.

- **Rule** only where that wheel is installed and is of this version; otherwise a warning says what to install
"""

import importlib.util
import sys
import warnings

VERSION = "0.1.0"


def take() -> None:
    """Makes `memlift._native` the native part of `memlift_server`, if that is there and nothing was loaded yet."""
    if "memlift._native" in sys.modules or importlib.util.find_spec("memlift_server") is None:
        return
    import memlift_server

    version = getattr(memlift_server, "__version__", None)
    if version is None:
        return  # a folder of that name, and not the wheel
    if version != VERSION:
        warnings.warn(
            f"memlift-server {version} is not used: it belongs to another version than memlift {VERSION}. pip install memlift-server=={VERSION}",
            stacklevel=3,
        )
        return
    try:
        from memlift_server import _native
    except ImportError as error:
        warnings.warn(f"memlift-server is not used: {error}. pip install --force-reinstall memlift-server=={VERSION}", stacklevel=3)
        return

    sys.modules["memlift._native"] = sys.modules["memlift"]._native = _native  # type: ignore[attr-defined]
