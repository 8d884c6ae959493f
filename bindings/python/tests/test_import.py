# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What importing memlift loads, and what a program gets where memlift's native part is not there."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

import memlift

ROOT = pathlib.Path(__file__).resolve().parents[3]


def run(code, *options, **environment):
    done = subprocess.run([sys.executable, *options, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_import_loads_no_service():
    loaded = run("""
        import sys
        import numpy
        before = set(sys.modules)
        import memlift
        print(*sorted(set(sys.modules) - before))
    """).split()
    # They cost more than everything else together.
    assert not {"asyncio", "multiprocessing", "ssl", "inspect", "ast"} & set(loaded), loaded
    assert {name for name in loaded if name.startswith("memlift")} == {"memlift", "memlift.errors", "memlift._whole", "memlift._native"}


def test_every_public_name_is_there():
    for name in [*memlift.__all__, "gzip", "zlib", "aio", "queue", "pool", "executor", "arena"]:
        assert name in dir(memlift)
        getattr(memlift, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        memlift.nothing  # noqa: B018
    run("from memlift import *; Queue, Executor, Arena, ipc, register")


@pytest.fixture
def server(tmp_path):
    """The environment of a Python that has the package of the wheel `memlift-server`, and its folder."""
    package = tmp_path / "memlift_server"
    shutil.copytree(ROOT / "bindings/python-server/memlift_server", package)
    (package / "_native.abi3.so").symlink_to(pathlib.Path(memlift._native.__file__).resolve())
    return {"env": {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}}, package


def test_the_native_part_of_memlift_server_is_taken_where_it_is(server):
    environment, package = server
    program = """
        import pickle
        import memlift
        from memlift import _native, errors, persist
        print(_native.__file__, memlift._native is _native)
        queue = memlift.Queue()
        queue.put(1)
        assert queue.get() == 1
        assert pickle.loads(pickle.dumps(errors.PeerDiedError("x"))).args == ("x",)
    """
    assert run(program, **environment).split() == [str(package / "_native.abi3.so"), "True"]
    # Without it, the package's own.
    assert "memlift_server" not in run("import memlift; print(memlift._native.__file__)")


def test_a_memlift_server_of_another_version_is_not_used(server):
    environment, package = server
    (package / "__init__.py").write_text('__version__ = "0.0.9"\n')
    program = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import memlift
        assert "pip install memlift-server==" in str(caught[0].message), caught
        print(memlift._native.__file__)
    """
    assert "memlift_server" not in run(program, **environment)


def test_a_folder_called_memlift_server_does_no_harm(server):
    environment, package = server
    (package / "_native.abi3.so").unlink()
    program = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import memlift
        print(len(caught), memlift._native.__file__)
    """
    found = run(program, **environment).split()
    assert found[0] == "1" and "memlift_server" not in found[1]
    (package / "__init__.py").unlink()
    found = run(program, **environment).split()
    assert found[0] == "0" and "memlift_server" not in found[1]


def test_both_wheels_have_one_version():
    workspace = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    project = (ROOT / "bindings/python-server/pyproject.toml").read_text()
    package = (ROOT / "bindings/python-server/memlift_server/__init__.py").read_text()
    assert memlift._whole.VERSION == workspace
    assert f'"memlift=={workspace}"' in project and f'"{workspace}"' in package


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A Python that has the wheel for other systems and nothing else of memlift."""
    folder = tmp_path_factory.mktemp("elsewhere")
    made = subprocess.run([sys.executable, ROOT / "tools/wheel-anywhere", memlift.__version__, folder], capture_output=True, text=True, check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder / "there", made.stdout.strip()], check=True
    )
    assert not list((folder / "there" / "memlift").glob("*.so"))
    return {"env": {"PYTHONPATH": str(folder / "there")}, "cwd": folder}


def test_queues_and_processes_elsewhere_are_the_standard_librarys(elsewhere):
    program = """
        import sys, warnings
        sys.platform = "darwin"
        import multiprocessing
        import memlift

        def double(x):
            return 2 * x

        def take(queue, answers):
            answers.put(queue.get() + 1)
            queue.task_done()

        if __name__ == "__main__":
            assert memlift.__version__
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", memlift.MemliftFallbackWarning)
                queue, answers = memlift.JoinableQueue(maxsize=3, bytes_max=1 << 20), memlift.Queue[int] and memlift.Queue(allow_pickle=True)
            assert all(one.category is memlift.errors.MemliftFallbackWarning for one in caught), caught
            assert any("Linux only; this is darwin" in str(one.message) for one in caught), caught
            warnings.simplefilter("ignore")
            process = multiprocessing.Process(target=take, args=(queue, answers))
            process.start()
            queue.put(41)
            assert answers.get(timeout=60) == 42
            queue.join()
            process.join()
            with memlift.Executor(2, bytes_max=1 << 20, allow_pickle=True) as executor:
                assert list(executor.map(double, range(5))) == [0, 2, 4, 6, 8]
            with memlift.Pool(2, allow_pickle=True) as pool:
                assert pool.map(double, range(5)) == [0, 2, 4, 6, 8]
            for name in ("Arena", "ipc", "persist", "zlib"):
                try:
                    getattr(memlift, name)
                except ImportError as error:
                    assert f"memlift.{name} needs" in str(error)
                else:
                    raise AssertionError(name)
            assert issubclass(memlift.DeadlineExceededError, TimeoutError)
            print("done")
    """
    file = elsewhere["cwd"] / "program.py"
    file.write_text(textwrap.dedent(program))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=120, check=False, **elsewhere)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_a_linux_without_the_native_part_is_told_what_to_do(elsewhere):
    said = run("""
        import memlift
        try:
            memlift.ipc
        except ImportError as error:
            print(error)
    """, **elsewhere)
    assert "pip install --no-binary memlift memlift" in said
