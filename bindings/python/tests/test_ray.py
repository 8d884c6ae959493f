# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`memlift.ray`: tensors of real Ray actors in memory of memlift, on one machine and, as far as Ray's cluster utility goes, on two.

Method   Ray and PyTorch are not among the pinned requirements: `make test-ml` installs them, and without them these tests are skipped.
         Each test is a program of its own, since Ray is started once per process
"""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

if not (importlib.util.find_spec("torch") and importlib.util.find_spec("ray")):
    pytest.skip("Ray and PyTorch are not installed", allow_module_level=True)

BEGIN = """
import os, sys, time
import ray, torch
import memlift.ray

memlift.ray.register()

@ray.remote(num_cpus=0)
class Maker:
    def __init__(self):
        self.made = None

    @ray.method(tensor_transport="memlift")
    def make(self, number, count=1):
        if count == 1:
            return torch.full((250_000,), float(number))
        return {"all": [torch.full((1000 + i,), number + i, dtype=torch.bfloat16) for i in range(count)], "name": "several"}

    @ray.method(tensor_transport="memlift")
    def meta(self):
        return torch.empty(3, device="meta")

    def pid(self):
        return os.getpid()

    def values(self):
        from ray.experimental.rdt.util import get_tensor_transport_manager
        arena = get_tensor_transport_manager("MEMLIFT")._arena
        return arena.stats()["values"] if arena else 0

@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Reader:
    def total(self, tensor):
        return float(tensor.double().sum()), tensor.is_contiguous()

    def totals(self, made):
        return made["name"], [float(tensor.double().sum()) for tensor in made["all"]]

    def writes(self, tensor):
        tensor += 1
        return float(tensor[0])

    def where(self, tensor):
        with open("/proc/self/maps") as maps:
            for line in maps:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                if start <= tensor.data_ptr() < end:
                    return line
"""


def run(code, **environment):
    program = BEGIN + textwrap.dedent(code) + "\nray.shutdown()\nprint('done')\n"
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", **environment}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr
    return done.stdout


def test_two_actors_share_what_one_made():
    run("""
    ray.init("local", num_cpus=2, include_dashboard=False)
    maker, reader, other = Maker.remote(), Reader.remote(), Reader.remote()
    made = maker.make.remote(3)
    got = ray.get(reader.total.remote(made))
    assert got == (750_000.0, True), got
    assert float(ray.get(made).sum()) == 750_000, "the driver reads, too"
    assert "memlift" in ray.get(reader.where.remote(made)), "it lies in the arena"
    assert ray.get([reader.writes.remote(made), other.writes.remote(made)]) == [4.0, 4.0], "each writes its own"
    assert float(ray.get(made).sum()) == 750_000
    name, totals = ray.get(reader.totals.remote(maker.make.remote(2, 3)))
    assert name == "several" and totals == [2000, 3003, 4008], (name, totals)
    for number in range(300):
        assert ray.get(reader.total.remote(maker.make.remote(number)))[0] == 250_000 * number
    del made
    end = time.monotonic() + 60
    while ray.get(maker.values.remote()) and time.monotonic() < end:
        time.sleep(0.1)
    assert ray.get(maker.values.remote()) == 0, "what nobody needs goes"
    """)


def test_an_actor_that_is_killed_is_an_error():
    run("""
    ray.init("local", num_cpus=2, include_dashboard=False)
    maker, reader, late = Maker.remote(), Reader.remote(), Reader.remote()
    made = maker.make.remote(3)
    ray.get(reader.total.remote(made))
    ray.kill(maker)
    time.sleep(1)
    try:
        ray.get(late.total.remote(made), timeout=60)
    except ray.exceptions.RayError as error:
        print(type(error).__name__)
    else:
        raise SystemExit("it was read from the dead")
    maker, reader = Maker.remote(), Reader.remote()
    assert ray.get(reader.total.remote(maker.make.remote(1)))[0] == 250_000
    """)


def test_tensors_of_no_use_are_refused_by_name():
    run("""
    ray.init("local", num_cpus=2, include_dashboard=False)
    maker, reader = Maker.remote(), Reader.remote()
    try:
        ray.get(reader.total.remote(maker.meta.remote()), timeout=100)
    except (ray.exceptions.RayError, ValueError) as error:
        print(str(error)[:300])
    else:
        raise SystemExit("it was sent")
    """)


def test_between_machines_it_goes_by_rays_object_store():
    # Two nodes of Ray on one machine, one of which says that it is another machine.
    run("""
    from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"here": 4}})
    try:
        cluster.add_node(num_cpus=1, resources={"there": 4})
        ray.init(address=cluster.address)
        elsewhere = {"env_vars": {"MEMLIFT_RAY_MACHINE": "another"}}
        maker = Maker.options(resources={"here": 1}).remote()
        near, far = Reader.options(resources={"here": 1}).remote(), Reader.options(resources={"there": 1}, runtime_env=elsewhere).remote()
        made = maker.make.remote(5)
        assert ray.get([far.total.remote(made), near.total.remote(made)]) == [(1_250_000.0, True)] * 2
        assert "memlift" in ray.get(near.where.remote(made))
        assert "memlift" not in (ray.get(far.where.remote(made)) or "")
    finally:
        ray.shutdown()
        cluster.shutdown()
    """)
