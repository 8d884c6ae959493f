# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The classes of what memlift raises: their names, and the names that they had before."""

import inspect
import pickle
import subprocess
import sys
import warnings

import pytest

import memlift
from memlift import errors

CLASSES = {name: one for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, BaseException) and one.__module__ == errors.__name__}
PUBLIC = {name: one for name, one in CLASSES.items() if not name.startswith("_") and not issubclass(one, Warning)}
FORMER = sorted(errors._FORMER)


def test_every_class_is_an_error_by_name_and_by_base():
    assert len(PUBLIC) > 60
    for name, one in PUBLIC.items():
        assert name.endswith("Error") and one.__name__ == name and one.__doc__, name
        assert issubclass(one, errors.Error), name
        assert getattr(memlift, name) is one and name in memlift.__all__, name


@pytest.mark.parametrize("module", [memlift, errors], ids=["memlift", "memlift.errors"])
@pytest.mark.parametrize("name", FORMER)
def test_a_former_name_works_and_warns_where_it_is_used(module, name):
    assert not name.endswith("Error") and name not in vars(module)
    with pytest.warns(DeprecationWarning, match=f"{module.__name__}.{name} is .*Error") as seen:
        former = getattr(module, name)
    assert seen[0].filename == __file__
    now = [PUBLIC[f"{name}Error"]] if f"{name}Error" in PUBLIC else former.__subclasses__()
    assert now and all(issubclass(one, former) for one in now)
    for one in former.__subclasses__() if former.__name__.startswith("_") else [former]:
        with warnings.catch_warnings(record=True), pytest.raises(one):
            try:
                raise one("what happened") if one is not errors.RemoteError else one("f", "what happened")
            except getattr(module, name):
                raise


def test_a_former_name_can_be_imported_and_caught():
    program = "import warnings\nwarnings.simplefilter('error')\nimport memlift, memlift.errors\nfrom memlift import PeerDiedError\nwarnings.simplefilter('ignore')\nfrom memlift import PeerDied\nfrom memlift.errors import Corrupt\n" "try: raise PeerDiedError('gone')\nexcept memlift.PeerDied as error: print(type(error).__name__, PeerDied is PeerDiedError)\n" "for one in memlift.CorruptStreamError, memlift.CorruptMessageError:\n    try: raise one('bits')\n    except Corrupt as error: print(type(error).__name__)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PeerDiedError", "True", "CorruptStreamError", "CorruptMessageError"]


def test_what_was_pickled_under_a_former_name_is_read():
    now = pickle.dumps(errors.PeerDiedError("gone"), protocol=0)
    before = now.replace(b"PeerDiedError", b"PeerDied")
    assert before != now
    with pytest.warns(DeprecationWarning):
        assert type(pickle.loads(before)) is errors.PeerDiedError


def test_other_names_are_none():
    for module in (memlift, errors):
        with pytest.raises(AttributeError, match="has no attribute 'PeerLives'"):
            _ = module.PeerLives
        assert not hasattr(module, "__wrapped__")


def test_two_conditions_are_two_classes():
    for former, classes in {
        "PoolFull": {"PoolFullError", "PayloadPoolFullError"},
        "Corrupt": {"CorruptStreamError", "CorruptMessageError"},
        "ReadOnly": {"ReadOnlyError", "NodeLogFullError"},
        "Busy": {"ScratchBusyError", "NodeBusyError"},
        "WalkFailed": {"WalkFailedError", "WalkTooLongError"},
        "NoSuchAddress": {"NoSuchAddressError", "NodeUnreachableError"},
        "Forbidden": {"ForbiddenError", "WrongKeyError"},
        "BadInput": {"BadInputError", "BadChunkError"},
    }.items():
        assert {one.__name__ for one in errors._FORMER[former].__subclasses__()} == classes
