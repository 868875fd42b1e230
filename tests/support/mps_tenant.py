"""A program that uses the CUDA driver by commands, one a line; it prints a result and a value for each."""

import ctypes
import os
import sys
import threading
from typing import Any

#: A simulated driver knows both by their names; `sim_spin_for` takes nanoseconds there, rounds on a real one.
KERNELS = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .s32 n)
{
.reg .u64 %a, %b, %c, %at; .reg .u32 %i; .reg .f32 %x, %y;
ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %c, [c];
mov.u32 %i, %tid.x; mul.wide.u32 %at, %i, 4;
add.u64 %a, %a, %at; add.u64 %b, %b, %at; add.u64 %c, %c, %at;
ld.global.f32 %x, [%a]; ld.global.f32 %y, [%b]; add.f32 %x, %x, %y; st.global.f32 [%c], %x;
ret;
}
.visible .entry sim_spin_for(.param .u64 rounds)
{
.reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;
ld.param.u64 %n, [rounds]; mov.u64 %i, 0; mov.u32 %x, 1;
L: st.volatile.shared.u32 [s], %x; ld.volatile.shared.u32 %x, [s];
add.u64 %i, %i, 1; setp.lt.u64 %p, %i, %n; @%p bra L;
ret;
}
"""
MULTIPROCESSORS = 16
cuda: Any = ctypes.CDLL("libcuda.so.1")
context, module, function, memory = (ctypes.c_void_p() for _ in range(4))


def start() -> tuple[int, object]:
    """A context on the first device, and how many multiprocessors it has."""
    number = ctypes.c_int()
    code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    code = code or cuda.cuCtxSetCurrent(context)
    code = code or cuda.cuDeviceGetAttribute(ctypes.byref(number), MULTIPROCESSORS, 0)
    return code, number.value


def find(name: bytes) -> int:
    """Have a kernel as `function`."""
    code: int = cuda.cuModuleLoadData(ctypes.byref(module), KERNELS)
    return code or int(cuda.cuModuleGetFunction(ctypes.byref(function), module, name))


def launch(bad: bool) -> Any:
    """Run a kernel to its end, with addresses that are not allocated if it is to be bad."""
    code = find(b"vector_add") or cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096))
    at = ctypes.c_uint64(8 if bad else memory.value or 0)
    words = [at, at, at, ctypes.c_int(16)]
    pointers = (ctypes.c_void_p * 4)(*(ctypes.cast(ctypes.byref(word), ctypes.c_void_p) for word in words))
    code = code or cuda.cuLaunchKernel(function, 1, 1, 1, 16, 1, 1, 0, None, pointers, None)
    return code or cuda.cuCtxSynchronize()


def queue(count: int) -> int:
    """Kernels of some milliseconds each, that nobody waits for."""
    code, rounds = find(b"sim_spin_for"), ctypes.c_uint64(100_000)
    pointers = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(rounds), ctypes.c_void_p))
    for _ in range(count):
        code = code or cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)
    return code


FUTEX, NO_TIMEOUT = "202", "0x0"


def waits(thread: threading.Thread) -> bool:
    """Whether it waits for a lock without a timeout (proc(5)); the interpreter's own locks have one."""
    with open(f"/proc/self/task/{thread.native_id}/syscall", encoding="ascii") as file:
        words = file.read().split()
    return len(words) > 4 and words[0] == FUTEX and words[4] == NO_TIMEOUT


def race() -> int:
    """Two threads call cuInit; setenv() holds the first (native/hold_setenv.c). How many end before it goes on?"""
    (answers, answer), (order, go_on) = os.pipe(), os.pipe()
    os.environ["HOLD"] = f"{answer} {order}"
    ended: list[int] = []
    first, second = (threading.Thread(target=lambda: ended.append(cuda.cuInit(0))) for _ in range(2))
    first.start()
    os.read(answers, 1)
    second.start()
    while not ended and not waits(second):
        os.sched_yield()
    early = len(ended)
    os.write(go_on, b"x")
    first.join()
    second.join()
    return early


print("ready", os.getpid(), flush=True)
for line in sys.stdin:
    command, *more = line.split()
    value: object = "-"
    if command == "start":
        result, value = start()
    elif command == "environment":
        environ = ctypes.CDLL(None).getenv
        environ.restype = ctypes.c_char_p
        result, value = 0, (environ(more[0].encode()) or b"-").decode()
    elif command == "take":
        result = cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(int(more[0]) << 20))
    elif command == "queue":
        result = queue(int(more[0]))
    elif command == "race":
        result, value = 0, race()
    elif command == "fork":  # the child goes on where its parent has used the driver
        child = os.fork()
        if not child:
            os._exit(cuda.cuCtxSynchronize() & 0xFF)
        result = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        result = launch(command == "fault")
    print(result, value, flush=True)
