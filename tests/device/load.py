"""Keeps every GPU busy for SECONDS: python3 load.py SECONDS

Needs nothing but Python and the driver's libcuda.so.1: a kernel of multiplications and additions in PTX, which the driver
compiles, and the filling of a buffer of 256 MiB. Prints the PCI address of each GPU that it loads.
"""

import ctypes
import sys
import time

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p<2>;
    .reg .f32 %f<3>;
    .reg .b32 %r<7>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [rounds];
    mov.f32 %f1, 0f3F800000;
    mov.f32 %f2, 0f3F7FFFFE;
    mov.u32 %r2, 0;
again:
    fma.rn.f32 %f1, %f1, %f2, %f2;
    fma.rn.f32 %f1, %f1, %f2, %f2;
    fma.rn.f32 %f1, %f1, %f2, %f2;
    fma.rn.f32 %f1, %f1, %f2, %f2;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra again;
    cvta.to.global.u64 %d2, %d1;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    mul.wide.u32 %d3, %r6, 4;
    add.u64 %d2, %d2, %d3;
    st.global.f32 [%d2], %f1;
    ret;
}
\0"""
BYTES = 256 << 20
THREADS = 256
ROUNDS = 100_000  # some ten milliseconds
MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


def main(seconds):
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(cuda, name)(*arguments)
        if status:
            sys.exit(f"{name}: CUDA error {status}")

    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    gpus = []
    for n in range(count.value):
        device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        buffer, multiprocessors, address = ctypes.c_uint64(), ctypes.c_int(), ctypes.create_string_buffer(32)
        call("cuDeviceGet", ctypes.byref(device), n)
        call("cuDeviceGetPCIBusId", address, len(address), device)
        call("cuDeviceGetAttribute", ctypes.byref(multiprocessors), MULTIPROCESSORS, device)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        call("cuModuleLoadData", ctypes.byref(module), PTX)
        call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
        call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(BYTES))
        rounds = ctypes.c_uint32(ROUNDS)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), ctypes.addressof(rounds))
        blocks = min(multiprocessors.value * 8, BYTES // 4 // THREADS)
        gpus.append((context, kernel, buffer, rounds, parameters, blocks))
        print(address.value.decode(), flush=True)
    if not gpus:
        sys.exit("CUDA shows no GPU")
    none = ctypes.c_void_p()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for context, kernel, buffer, _, parameters, blocks in gpus:
            call("cuCtxSetCurrent", context)
            call("cuMemsetD32Async", buffer, ctypes.c_uint(1), ctypes.c_size_t(BYTES // 4), none)
            call("cuLaunchKernel", kernel, blocks, 1, 1, THREADS, 1, 1, 0, none, parameters, none)
        for context, *_ in gpus:
            call("cuCtxSetCurrent", context)
            call("cuCtxSynchronize")


main(float(sys.argv[1]))
