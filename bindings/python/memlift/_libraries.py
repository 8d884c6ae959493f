# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where the libraries lie that programs load without being rebuilt."""

import os
import pathlib
import sysconfig

from memlift import _native

_NAMES = {
    "libz": "libmemlift_z.so",
    "openssl": "libmemlift_openssl.so",
    "run": "libmemlift_preload.so",
    "record": "libmemlift_tap.so",
    "c": "libmemlift_c.so",
}


def libraries() -> dict[str, pathlib.Path]:
    """Returns the libraries that are installed with this package, by what they are for.

    `libz` and `openssl` are the drop-ins that `memlift dropin enable` puts under a program, `run` and `record` are what
    `memlift run` and `memlift record` load, `c` is for C programs, whose headers lie in `../../include/memlift` beside it.
    A library that is not there is left out. The folder that MEMLIFT_DROPINS names comes first, as for the command.
    """
    # pip unpacks data below the environment, below the user's folder, or, with --target, beside the package.
    prefixes = [sysconfig.get_path("data"), sysconfig.get_path("data", "posix_user"), pathlib.Path(__file__).resolve().parents[1]]
    folders = [pathlib.Path(prefix, "lib", "memlift") for prefix in prefixes]
    # In a checkout, cargo puts them beside the extension module.
    folders.append(pathlib.Path(_native.__file__).resolve().parent)
    named = os.environ.get("MEMLIFT_DROPINS")
    if named:
        folders.insert(0, pathlib.Path(named))
    found = {}
    for purpose, name in _NAMES.items():
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            found[purpose] = path
    return found
