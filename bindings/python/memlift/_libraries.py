# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where the libraries lie that programs load without being rebuilt."""

import os
import pathlib
import sysconfig

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
    # This package may have been installed for the user, or into a folder of its own: data lies beside its scripts.
    package = pathlib.Path(__file__).resolve().parent
    folders = [pathlib.Path(folder) for folder in (os.environ.get("MEMLIFT_DROPINS"),) if folder]
    for scheme in (None, "posix_user"):
        paths = sysconfig.get_paths() if scheme is None else sysconfig.get_paths(scheme)
        folders.append(pathlib.Path(paths["data"], "lib", "memlift"))
    folders += [above / "lib" / "memlift" for above in package.parents]
    found = {}
    for purpose, name in _NAMES.items():
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            found[purpose] = path
    return found
