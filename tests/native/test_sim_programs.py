"""Programs of others on a simulated driver, as their authors publish them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable

import pytest
import yaml
from support import GIB, MIB, REPO, foreign, run
from support.simdriver import environment
from support.vgpushim import CONTEXT, Slice

from nvc.testing.sim import SimSpec
from nvc.testing.sim.spec import gpus_of

pytestmark = pytest.mark.nightly

VERSION = SimSpec().driver_version

BINDINGS = """
from cuda.bindings import driver
import json, pynvml
def do(result, *values):
    assert result == 0, result
    return values[0] if len(values) == 1 else values
do(*driver.cuInit(0))
device = do(*driver.cuDeviceGet(1))
do(*driver.cuCtxSetCurrent(do(*driver.cuDevicePrimaryCtxRetain(device))))
do(*driver.cuMemAlloc(1 << 30))
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(1)
(process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
print(json.dumps({
    "count": do(*driver.cuDeviceGetCount()),
    "name": pynvml.nvmlDeviceGetName(handle),
    "version": pynvml.nvmlSystemGetDriverVersion(),
    "used": process.usedGpuMemory,
}))
"""

#: A graph of four kernels of 5 ms, captured once and launched twice between two events.
GRAPH = """
from cuda.core import Device, EventOptions, LaunchConfig, Program, ProgramOptions, launch
device = Device()
device.set_current()
stream = device.create_stream()
source = 'extern "C" __global__ void sim_spin_5ms() {}'
program = Program(source, code_type="c++", options=ProgramOptions(arch="sm_90"))
kernel = program.compile("ptx").get_kernel("sim_spin_5ms")
builder = device.create_graph_builder()
builder.begin_building()
for _ in range(4):
    launch(builder, LaunchConfig(grid=1, block=32), kernel)
graph = builder.end_building().complete()
start = stream.record(options=EventOptions(timing_enabled=True))
graph.launch(stream)
graph.launch(stream)
end = stream.record(options=EventOptions(timing_enabled=True))
end.sync()
print(end - start)
"""

#: PTX and a cubin in one fat binary, as nvcc puts it into a program: loaded by itself and through nvcc's wrapper.
FAT_BINARY = '''
import ctypes, struct
from cuda.bindings import driver, nvfatbin
from cuda.core import Device, Program, ProgramOptions
source = """extern "C" __global__ void fill_u32(unsigned *out, unsigned value, unsigned long long n)
{
    if (threadIdx.x < n)
        out[threadIdx.x] = value;
}"""
device = Device()
device.set_current()
handle = nvfatbin.create([], 0)
for kind, add in (("ptx", nvfatbin.add_ptx), ("cubin", nvfatbin.add_cubin)):
    code = Program(source, code_type="c++", options=ProgramOptions(arch="sm_90")).compile(kind).code
    add(handle, code, len(code), "90", kind, *([""] if kind == "ptx" else []))
binary = bytearray(nvfatbin.size(handle))
nvfatbin.get(handle, binary)
binary = ctypes.create_string_buffer(bytes(binary))
wrapper = ctypes.create_string_buffer(struct.pack("IIQQ", 0x466243B1, 1, ctypes.addressof(binary), 0))
def do(result, *values):
    assert result == 0, result
    return values[0] if values else None
out = do(*driver.cuMemAlloc(1024))
for value, image in ((1, binary), (2, wrapper)):
    library = do(*driver.cuLibraryLoadData(ctypes.addressof(image), None, None, 0, None, None, 0))
    function = do(*driver.cuKernelGetFunction(do(*driver.cuLibraryGetKernel(library, b"fill_u32"))))
    types = (ctypes.c_uint64, ctypes.c_uint, ctypes.c_uint64)
    do(*driver.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, 0, ((int(out), value, 256), types), 0))
    there = (ctypes.c_uint * 256)()
    do(*driver.cuMemcpyDtoH(ctypes.addressof(there), out, 1024))
    print(set(there))
'''

NUMBA = """
import numpy
from numba import cuda

@cuda.jit
def sim_spin_20ms(out):
    out[cuda.grid(1)] = 1

there = cuda.to_device(numpy.zeros(256, dtype=numpy.float32))
stream, start, end = cuda.stream(), cuda.event(), cuda.event()
start.record(stream)
sim_spin_20ms[1, 256, stream](there)
end.record(stream)
end.synchronize()
assert start.elapsed_time(end) >= 20
print(len(cuda.gpus), cuda.current_context().get_memory_info().total)
"""

#: Takes device memory in steps of 256 MiB until the driver says that there is no more.
GREEDY = """
from cuda.bindings import driver
from cuda.core import Device
device = Device()
device.set_current()
taken = 0
while True:
    result, _ = driver.cuMemAlloc(256 << 20)
    if result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        break
    assert result == 0, result
    taken += 256
print(taken, driver.cuMemGetInfo()[2])
"""

RUNTIME = """
import ctypes, sys
runtime, count = ctypes.CDLL(sys.argv[1]), ctypes.c_int(-1)
print(runtime.cudaGetDeviceCount(ctypes.byref(count)))
"""


def python(root: str, program: str, *arguments: str, **variables: str) -> str:
    done = run(
        foreign.python(), "-W", "ignore", "-c", program, *arguments,
        env=environment(root, **variables), timeout=300,
    )  # fmt: skip
    return done.stdout


def test_cuda_bindings_and_nvidia_ml_py(sim_root: Callable[..., str]) -> None:
    spec = SimSpec(gpus=2)
    said = json.loads(python(sim_root(gpus=2), BINDINGS))
    assert said == {
        "count": 2,
        "name": gpus_of(spec)[1].name,
        "version": VERSION,
        "used": CONTEXT + GIB,
    }


def test_cuda_core_with_a_kernel_in_cpp(sim_root: Callable[..., str]) -> None:
    """The program in docs/simulated-driver.md: C++ compiled by NVRTC, launched on a stream, its result checked."""
    with open(os.path.join(REPO, "docs/simulated-driver.md"), encoding="utf-8") as file:
        (program,) = re.findall(r"^```python\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    assert python(sim_root(), program) == gpus_of(SimSpec())[0].name + "\n"


def test_a_graph_of_cuda_core(sim_root: Callable[..., str]) -> None:
    assert 40 <= float(python(sim_root(), GRAPH)) < 40.1  # simulated time: another program would lengthen it


def test_a_fat_binary(sim_root: Callable[..., str]) -> None:
    assert python(sim_root(), FAT_BINARY) == "{1}\n{2}\n"


def test_numba(sim_root: Callable[..., str], tmp_path: os.PathLike[str]) -> None:
    """Numba reads the function's source, so this one is a file."""
    script = os.path.join(tmp_path, "program.py")
    with open(script, "w", encoding="ascii") as file:
        file.write(NUMBA)
    root = sim_root(gpus=3, memory=16 * GIB)
    done = run(foreign.python(), "-W", "ignore", script, env=environment(root), timeout=300)
    gpus, total = done.stdout.split()
    assert int(gpus) == 3 and 15 * GIB < int(total) < 16 * GIB


def test_a_slice_limits_cuda_core(plain_slice: Callable[..., Slice]) -> None:
    done = run(foreign.python(), "-c", GREEDY, env=plain_slice().environment(), timeout=300)
    taken, total = map(int, done.stdout.split())
    assert total == 2 * GIB
    assert taken == (2 * GIB - CONTEXT) // (256 * MIB) * 256


@pytest.mark.parametrize("major", [12, 13])
def test_nvidias_runtime_says_why_it_does_not_run(sim_root: Callable[..., str], major: int) -> None:
    """It has the driver prove that it is NVIDIA's."""
    root = sim_root()
    done = run(foreign.python(), "-c", RUNTIME, foreign.cudart(major), env=environment(root))
    assert done.stdout == "500\n"
    assert "libcudart) runs only on NVIDIA's driver" in done.stderr


def test_nvidia_ctk_describes_a_simulated_driver(sim_root: Callable[..., str]) -> None:
    """It reads capabilities of MIG devices below the host's own /proc; the root's are put there."""
    root = sim_root(gpus=2, mig=("", "1g.10gb,2g.20gb"))
    tools = foreign.toolkit()
    script = (
        'mount --bind "$1/proc/driver" /proc/driver && exec "$2/nvidia-ctk" cdi generate '
        '--driver-root="$1" --nvidia-cdi-hook-path="$2/nvidia-cdi-hook"'
    )
    found = yaml.safe_load(run("unshare", "--mount", "sh", "-c", script, "sh", root, tools).stdout)
    devices = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in found["devices"]
    }
    gpu, divided = gpus_of(SimSpec(gpus=2, mig=("", "1g.10gb,2g.20gb")))
    uuids = {gpu.uuid, *(mig.uuid for mig in divided.mig)}
    assert set(devices) == {"0", "1:0", "1:1", "all", *uuids}
    assert devices["0"] == ["/dev/nvidia0"]
    assert devices["1:0"][0] == "/dev/nvidia1"
    assert [path.startswith("/dev/nvidia-caps/nvidia-cap") for path in devices["1:0"]] == [False, True, True]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in found["containerEdits"]["mounts"]}
    for stem in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        (path,) = (path for path in mounts if path.endswith(f"/{stem}.so.{VERSION}"))
        assert mounts[path] == root + path
    assert mounts["/usr/bin/nvidia-smi"] == f"{root}/usr/bin/nvidia-smi"
    assert f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin" in mounts
