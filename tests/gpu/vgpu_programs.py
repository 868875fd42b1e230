"""What frameworks do in a slice of 10 GiB, one function each; prints one JSON line. Usage: vgpu_programs.py NAME"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

MIB = 1 << 20
GIB = 1 << 30


def nvml_device() -> Any:
    """NVML's handle of the GPU that CUDA calls 0: CUDA_VISIBLE_DEVICES has no meaning to NVML."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0])


def used_here() -> int:
    """MiB that NVML says this process has; the tenant's view."""
    import pynvml

    device = nvml_device()
    for one in pynvml.nvmlDeviceGetComputeRunningProcesses(device):
        if one.pid == os.getpid():
            return int(one.usedGpuMemory // MIB)
    return 0


def run_torch() -> dict[str, Any]:
    import torch

    free, total = torch.cuda.mem_get_info()
    out: dict[str, Any] = {"free": free // MIB, "total": total // MIB}
    out["properties"] = torch.cuda.get_device_properties(0).total_memory // MIB
    try:
        torch.empty(11 * GIB, dtype=torch.uint8, device="cuda")
        out["refused"] = "nothing"
    except torch.OutOfMemoryError as error:
        out["refused"] = str(error)[:80]
    held = []
    try:
        while True:
            held.append(torch.empty(512 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        out["got"] = len(held) * 512
    held.clear()
    torch.cuda.empty_cache()
    again = torch.ones(4 * GIB, dtype=torch.uint8, device="cuda")
    out["again"] = int(again[::GIB].sum())
    del again
    torch.cuda.empty_cache()
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    product = a @ a
    image = torch.nn.Conv2d(64, 64, 3).cuda()(torch.randn(8, 64, 128, 128, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = a @ a + 1
    graph.replay()
    torch.cuda.synchronize()
    out["finite"] = bool(torch.isfinite(product).all() and torch.isfinite(image).all())
    out["captured"] = bool(torch.isfinite(captured).all())
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
        out["fraction"] = "nothing"
    except torch.OutOfMemoryError:
        out["fraction"] = "refused"
    out["reserved"] = torch.cuda.memory_reserved() // MIB
    out["used"] = used_here()
    free, total = torch.cuda.mem_get_info()
    out["used_by_cuda"] = (total - free) // MIB
    return out


def run_torch_segments() -> dict[str, Any]:
    """PyTorch's allocator by cuMemCreate; the variable is set by the caller."""
    import torch

    held: list[Any] = []
    try:
        while True:
            held.append(torch.empty(500 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        got = len(held) * 500
    held.clear()
    torch.cuda.empty_cache()
    after = torch.empty(5 * GIB, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    return {"got": got, "after": after.numel() // MIB, "free": free // MIB, "total": total // MIB}


def child(queue: Any) -> None:
    import torch

    queue.put(int(torch.ones(64 * MIB, device="cuda").sum().item()) // MIB)


def run_torch_processes() -> dict[str, Any]:
    import torch
    import torch.multiprocessing as processes

    data = torch.utils.data.TensorDataset(torch.arange(4096).float())
    loader = torch.utils.data.DataLoader(data, batch_size=64, num_workers=4, pin_memory=True)
    total = sum(float(batch.cuda().sum()) for (batch,) in loader)
    context = processes.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=child, args=(queue,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    answers = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    return {"total": total, "answers": answers, "codes": [worker.exitcode for worker in workers]}


def run_cupy() -> dict[str, Any]:
    import cupy

    out: dict[str, Any] = {"total": cupy.cuda.Device(0).mem_info[1] // MIB}
    pool, later = cupy.cuda.MemoryPool(), cupy.cuda.MemoryAsyncPool()
    for name, allocator in (("pool", pool.malloc), ("async", later.malloc), ("plain", None)):
        cupy.cuda.set_allocator(allocator)
        held: list[Any] = []
        try:
            while len(held) < 100:
                held.append(cupy.zeros(512 * MIB, dtype=cupy.uint8))
            out[name] = "no end"
        except cupy.cuda.memory.OutOfMemoryError:
            out[name] = len(held) * 512
        except cupy.cuda.runtime.CUDARuntimeError as error:
            out[name] = len(held) * 512 if "MemoryAllocation" in str(error) else str(error)
        held.clear()
        cupy.cuda.Device(0).synchronize()
        pool.free_all_blocks()
        cupy.cuda.runtime.memPoolTrimTo(cupy.cuda.runtime.deviceGetDefaultMemPool(0), 0)
    cupy.cuda.set_allocator(None)
    x = cupy.arange(1 << 20, dtype=cupy.float32)
    out["sum"] = float((x * 2).sum())
    return out


def run_jax() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    x = jnp.ones((4096, 4096), dtype=jnp.bfloat16)
    value = float((x @ x)[0, 0])
    stats = jax.devices()[0].memory_stats() or {}
    refused = "nothing"
    try:
        jnp.ones((12 * GIB,), dtype=jnp.uint8).block_until_ready()
    except Exception as error:
        refused = str(error)[:60]
    return {"value": value, "limit": stats.get("bytes_limit", 0) // MIB, "refused": refused}


def run_triton() -> dict[str, Any]:
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)

    x = torch.rand(1 << 20, device="cuda")
    y = torch.rand(1 << 20, device="cuda")
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return {"equal": bool(torch.equal(out, x + y))}


def driver() -> Any:
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda


def run_managed() -> dict[str, Any]:
    """Managed memory, by both versions of the call that moves it; never more than the slice."""
    cuda = driver()
    at, size = ctypes.c_uint64(), 256 * MIB
    out = {"alloc": cuda.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(size), 1)}
    out["set"] = cuda.cuMemsetD8_v2(at, 7, ctypes.c_size_t(size))
    out["old"] = cuda.cuMemPrefetchAsync(at, ctypes.c_size_t(size), 0, None)
    entry, status = ctypes.c_void_p(), ctypes.c_int()
    cuda.cuGetProcAddress_v2(
        b"cuMemPrefetchAsync", ctypes.byref(entry), 13000, ctypes.c_uint64(0), ctypes.byref(status)
    )
    location = ctypes.c_uint64(1)  # type 1, a device; id 0

    newer = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint, ctypes.c_void_p
    )(entry.value or 0)
    out["new"] = newer(at.value, size, location.value, 0, None)
    out["advise"] = cuda.cuMemAdvise(at, ctypes.c_size_t(size), 1, 0)
    out["sync"] = cuda.cuCtxSynchronize()
    out["byte"] = ctypes.cast(at.value or 0, ctypes.POINTER(ctypes.c_ubyte))[size - 1]
    out["free"] = cuda.cuMemFree_v2(at)
    out["beyond"] = cuda.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(11 * GIB), 1)
    return out


def run_nvml() -> dict[str, Any]:
    """Every question that monitoring tools ask, through NVIDIA's own bindings."""
    import pynvml

    cuda = driver()
    at = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(GIB)) == 0
    device = nvml_device()
    one = pynvml.nvmlDeviceGetMemoryInfo(device)
    two = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    own = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device) if p.pid == os.getpid()]
    rates = pynvml.nvmlDeviceGetUtilizationRates(device)
    return {
        "v1": [one.total // MIB, one.used // MIB, one.free // MIB],
        "v2": [two.total // MIB, two.used // MIB, two.free // MIB],
        "cuda": [total.value // MIB, (total.value - free.value) // MIB, free.value // MIB],
        "processes": [len(pynvml.nvmlDeviceGetComputeRunningProcesses(device)), len(own)],
        "own": own[0].usedGpuMemory // MIB if own else 0,
        "gpu": rates.gpu,
    }


if __name__ == "__main__":
    print(json.dumps(globals()[f"run_{sys.argv[1]}"]()))
