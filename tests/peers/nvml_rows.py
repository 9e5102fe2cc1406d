"""What nvidia-ml-py reads of every device, as JSON lines.

rows MAP.csv   every DCGM name of the map that one reading gives, by the calls and scales of the map
names FILE     which of the functions that FILE lists the library lacks
energy COUNT   COUNT times: fleet time and energy of every device, by one call each
"""

import csv
import ctypes
import json
import re
import sys
import time

import pynvml as nvml

SCALES = (
    ("0.001 ", lambda v: v / 1000),
    ("/1048576 ", lambda v: v // 1048576),
    ("/100 ", lambda v: v / 100),
    ("*1048576 ", lambda v: int(v * 1048576)),
    ("1 ", lambda v: v),
    ("string", str),
)


def field(handle, number, scope=0):
    """One field value, whatever its type."""
    value = nvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])[0]
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)
    name = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}[value.valueType]
    return getattr(value.value, name)


def gpm(handle, number):
    """One profiling metric over two samples."""
    samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    try:
        for sample in samples:
            if nvml.nvmlDeviceIsMigDeviceHandle(handle):
                gpu = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
                nvml.nvmlGpmMigSampleGet(gpu, nvml.nvmlDeviceGetGpuInstanceId(handle), sample)
            else:
                nvml.nvmlGpmSampleGet(handle, sample)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1, request.sample2 = samples
        request.metrics[0].metricId = number
        nvml.nvmlGpmMetricsGet(request)
        if request.metrics[0].nvmlReturn:
            raise nvml.NVMLError(request.metrics[0].nvmlReturn)
        return request.metrics[0].value
    finally:
        for sample in samples:
            nvml.nvmlGpmSampleFree(sample)


def readers(call):
    """The ways to read that a cell of the map names, each a function of a handle; none where one reading is not enough."""
    found = []
    if " + " in call and "nvmlGpm" not in call:
        return found
    for way in call.split(" or "):
        numbered = re.match(r"(?:nvmlDeviceGetFieldValues\(|field )(\d+)", way)
        metric = re.match(r"nvmlGpmMetricsGet\((\d+)", way)
        plain = re.fullmatch(r"(nvml\w+)(?:\((\w+)\))?(?: \.(\w+))?", way.strip())
        if numbered:
            found.append(lambda h, n=int(numbered[1]): field(h, n))
        elif metric:
            found.append(lambda h, n=int(metric[1]): gpm(h, n))
        elif plain and plain[1].startswith("nvmlSystem"):
            found.append(lambda _, f=getattr(nvml, plain[1]): f())
        elif plain and plain[1] == "nvmlDeviceGetMemoryInfo_v2":
            part = plain[3]
            found.append(lambda h, p=part: getattr(nvml.nvmlDeviceGetMemoryInfo(h, nvml.nvmlMemory_v2), p) if p else None)
        elif plain and plain[1] == "nvmlDeviceGetMigMode":
            found.append(lambda h: nvml.nvmlDeviceGetMigMode(h)[0])
        elif plain and hasattr(nvml, plain[1]) and plain[1] not in (
            "nvmlDeviceGetViolationStatus", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRetiredPages",
        ):
            arguments = [getattr(nvml, plain[2])] if plain[2] else []

            def read(h, f=getattr(nvml, plain[1]), a=arguments, p=plain[3]):
                value = f(h, *a)
                if p:
                    return getattr(value, p)
                return value[0] if isinstance(value, (list, tuple)) else value

            found.append(read)
    return found


def handles():
    """Every device: whole GPUs, and in place of those that are cut their instances."""
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        parts = []
        for part in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, part))
            except nvml.NVMLError_NotFound:
                break
        yield from [(part, number, gpu) for number, part in enumerate(parts)] or [(gpu, None, gpu)]


def reading(way, scale, handle, part, gpu):
    """What one way reads of a device; what an instance cannot say is asked of its GPU."""
    for asked in (handle, gpu) if part is not None else (handle,):
        try:
            value = way(asked)
            return {"value": scale(value)} if value is not None else {}
        except nvml.NVMLError as error:
            last = {"error": error.value}
    return last


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    for handle, part, gpu in handles():
        uuid = nvml.nvmlDeviceGetUUID(handle)
        for row in table:
            ways = readers(row["nvml_call"])
            scale = next((scale for prefix, scale in SCALES if row["scale"].startswith(prefix)), None)
            if not ways or scale is None:
                continue
            said = [reading(way, scale, handle, part, gpu) for way in ways]
            assert all(one == said[0] for one in said), (row["dcgm_name"], said)
            print(json.dumps({"uuid": uuid, "name": row["dcgm_name"], **said[0]}))


def names(path):
    library = ctypes.CDLL("libnvidia-ml.so.1")
    with open(path, encoding="utf-8") as file:
        print(json.dumps([name for name in file.read().split() if not hasattr(library, name)]))


def energy(count):
    for _ in range(count):
        for handle, _, _ in handles():
            value = nvml.nvmlDeviceGetFieldValues(handle, [(nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0)])[0]
            uuid = nvml.nvmlDeviceGetUUID(handle)
            print(json.dumps({"uuid": uuid, "at_us": value.timestamp, "mj": value.value.ullVal}))
        time.sleep(0.02)


def main():
    verb, argument = sys.argv[1:]
    if verb == "names":
        names(argument)
        return
    nvml.nvmlInit()
    {"rows": rows, "energy": lambda n: energy(int(n))}[verb](argument)
    nvml.nvmlShutdown()


main()
