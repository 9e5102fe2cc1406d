"""Writes a small lake by hand for what a demo lacks: scattered free GPUs, MIG, gangs, waits and a serving page.

questions_world.py TABLES.md LAKE

Two hours on the edge of a leap year, 2027-12-31 23:00 and 2028-01-01 00:00 UTC. The answers are worked out in tests/tests/it/questions.rs.
"""

import datetime
import json
import pathlib
import re
import sys

import duckdb

UTC = datetime.timezone.utc
HOUR_MS = 3_600_000
FIRST = datetime.datetime(2027, 12, 31, 23, tzinfo=UTC)
TIERS = ("busy", "sm", "effective")
CAUSES = ("exporter_down", "field_absent", "gap", "handover", "no_device_yet", "no_source", "out_of_range", "sentinel", "stale", "suspect")

rows: dict[str, list[dict]] = {}


def at(ms: int) -> datetime.datetime:
    """An instant, in milliseconds from 23:00."""
    return FIRST + datetime.timedelta(milliseconds=ms)


def add(table: str, hour: int, **columns) -> None:
    rows.setdefault(table, []).append({"hour": hour, "cluster": "c", **columns})


def hour_row(node, device, ms, place, hour=0, **columns) -> None:
    add("gpu_hours", hour, hour_start=at(hour * HOUR_MS), node=node, device=device, ms=ms, **place, **columns)


def owner_row(node, device, pod, ms, place, utilized=0, seen=None, **columns) -> None:
    """An owner's hour: what is not seen is a gap, in all tiers alike."""
    seen = ms if seen is None else seen
    figures = {f"{tier}_unobserved_{cause}_ms": 0 for tier in TIERS for cause in CAUSES}
    for tier in TIERS:
        figures |= {f"{tier}_utilized_ms": utilized, f"{tier}_stranded_ms": seen - utilized, f"{tier}_unobserved_gap_ms": ms - seen}
    owner = {"pod_uid": pod, "pod": pod, "namespace": "ns", "team": "ml"}
    hour_row(node, device, ms, place, **{**figures, "kind": "owner", **owner, **columns})


def piece(node, device, kind, start, end, hour=0, **columns) -> None:
    whole = {"ids": 1, "replicas": 1, "weight_num": 1, "weight_den": 1, "unit_num": 1, "unit_den": 1, "horizon_ms": 150_000}
    times = {"hour_start": at(hour * HOUR_MS), "from_at": at(start), "to_at": at(end)}
    add("settled_holdings", hour, node=node, device=device, kind=kind, **times, **{**whole, **columns})


def free(node, device, place) -> None:
    piece(node, device, "free", 0, HOUR_MS, reason="unheld")
    hour_row(node, device, HOUR_MS, place, kind="free", reason="unheld")


def fragmentation() -> None:
    place = {"product": "P18", "region": "r", "provider": "p", "purchase_option": "reserved"}
    for node, gpus in enumerate([8, 4, 4, 2, 1, 1]):
        for gpu in range(gpus):
            free(f"f{node}", f"f{node}-{gpu}", place)
    # A node of three free GPUs and one cut into instances, of which a pod that no device is named for takes one until 23:30:00.250.
    place = {"product": "PM", "region": "r", "provider": "p", "purchase_option": "spot"}
    for gpu in range(3):
        free("m", f"m-{gpu}", place)
    taken = 1_800_250
    number = {"replicas": None, "weight_num": None, "weight_den": None, "unit_num": None, "unit_den": 7, "ids": 0, "free_num": 7}
    piece("m", None, "owner", 0, taken, pod_uid="late", pod="late", namespace="ns", team="ml", **number)
    owner_row("m", None, "late", taken, place, seen=0)
    hour_row("m", None, -taken, place, kind="free", reason="held_unknown")
    third = {"parent": "m-3", "profile": "3g.20gb"}
    sizes = {"weight_num": 3, "weight_den": 7, "unit_num": 3, "unit_den": 7}
    piece("m", "m-3/1", "free", 0, HOUR_MS, reason="unheld", **third, **sizes)
    hour_row("m", "m-3/1", 1_542_857, place, kind="free", reason="unheld", **third)
    owner_row("m", "m-3/2", "slice", 1_542_857, place, utilized=771_428, held_profile_ms=HOUR_MS, **third)
    hour_row("m", "m-3", 514_286, place, kind="unavailable", reason="mig_orphan")


def sample(node, device, ms, util, **columns) -> None:
    add("gpu_samples", ms // HOUR_MS, node=node, device=device, at=at(ms), source="s", dev_gpu_util=util, **columns)


def gangs() -> None:
    # Eight devices for an hour, all busy for five minutes, then the first alone; the last falls silent after 23:49. At 23:20 it reads a
    # blank of int32, at 23:10 it has no GPU_UTIL but the other field.
    for gpu in range(8):
        piece("b", f"b-{gpu}", "owner", 0, HOUR_MS, pod_uid="burst", held_from=at(0))
        for minute in range(50 if gpu == 7 else 60):
            if gpu == 7 and minute == 20:
                sample("b", "b-7", minute * 60_000, 2_147_483_632)
            elif gpu == 7 and minute == 10:
                sample("b", "b-7", minute * 60_000, None, prof_gr_engine_active=0.0)
            else:
                sample("b", f"b-{gpu}", minute * 60_000, 95 if minute < 5 else 90 if gpu == 0 else 0)
    # Two devices across midnight, in two pieces each; both busy for two minutes. The sample before the first was another owner's time;
    # the first came by a clock that was 2 s ahead.
    add("scrapes", 0, node="n", at=at(1_832_000), source="s", status="ok", interval_ms=60_000, skew_ms=2_000)
    for gpu in range(2):
        device = f"n-{gpu}"
        piece("n", device, "owner", HOUR_MS // 2, HOUR_MS, pod_uid="night", held_from=at(HOUR_MS // 2))
        piece("n", device, "owner", HOUR_MS, HOUR_MS * 3 // 2, hour=1, pod_uid="night", held_from=at(HOUR_MS // 2))
        for minute in range(61):
            sample("n", device, 1_770_000 + minute * 60_000 + (2_000 if minute == 1 else 0), 80 if minute < 3 or gpu == 0 else 0)
    # One device of three unused, one unseen; a pod that never worked; one that no team pays for.
    place = {"product": "PG", "region": "r", "provider": "p", "purchase_option": "on-demand"}
    owner_row("u", "u-0", "gang", HOUR_MS, place, utilized=1_800_000, fb_used_mib_ms=61_440 * HOUR_MS, fb_unobserved_ms=0)
    owner_row("u", "u-1", "gang", HOUR_MS, place, seen=2_700_000, energy_mj=3_600_000_000)
    owner_row("u", "u-2", "gang", HOUR_MS, place, seen=0)
    owner_row("u", "u-3", "idler", 1_000_000, place, seen=900_000, namespace="ns2", team=None)
    hour_row("u", "u-3", 2_600_000, place, kind="unavailable", reason="cordoned")


def waits() -> None:
    place = {"product": "P 22", "region": "eu", "provider": "p", "purchase_option": "on-demand"}
    add("nodes", 0, node="w", kind="node", from_at=at(0), to_at=at(HOUR_MS), interval_from=at(0), **place)
    free("w", "w-0", place)

    def wait(pod, gpus, start, end, **columns) -> None:
        for hour in range(start // HOUR_MS, -(-end // HOUR_MS)):
            edges = {"from_at": at(max(start, hour * HOUR_MS)), "to_at": at(min(end, (hour + 1) * HOUR_MS)), "interval_from": at(start)}
            # An hour that closed while the pod waited does not know how it ended.
            known = columns if end <= (hour + 1) * HOUR_MS else {"product": columns.get("product")}
            add("demand", hour, pod_uid=pod, gpus=gpus, **edges, **known)

    wait("admitted", 8, 2_700_000, 4_500_000, outcome="bound", node="w")
    wait("quick", 1, 0, 1, outcome="bound", node="w")
    wait("waiting", 16, -1_800_000, 5_400_000)
    wait("gone", 1, 0, 100_500, outcome="withdrawn", product="P-22")


def serving() -> None:
    gauge = "vllm:num_requests_running"

    def round_of(source, ms, interval, value, name=gauge) -> None:
        hour = ms // HOUR_MS
        add("scrapes", hour, node="k", at=at(ms), source=source, status="ok", interval_ms=interval)
        add("extra_samples", hour, node="k", at=at(ms), source=source, name=name, labels='{"model":"m,1"}', value=value)

    for minute in range(60):
        round_of("page", minute * 60_000, 60_000, 32 if minute < 15 else 8)
    round_of("page", HOUR_MS, 60_000, None)
    round_of("sparse", 500, 1_001, 2.5)
    round_of("sparse", 600_000, 1_001, 1)
    round_of("other", 0, 60_000, 99, name="vllm:num_requests_waiting")


def write(schema: pathlib.Path, lake: pathlib.Path) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for table, columns in tables(schema.read_text(encoding="utf-8")).items():
        for hour in sorted({row["hour"] for row in rows.get(table, [])}):
            start = at(hour * HOUR_MS)
            folder = lake / table / f"date={start:%Y-%m-%d}" / f"hour={start:%H}"
            folder.mkdir(parents=True)
            write_file(connection, folder / "part-00000.parquet", columns, [row for row in rows[table] if row["hour"] == hour])


def tables(text: str) -> dict[str, list[tuple[str, str, bool]]]:
    """Name, type and whether it may be null, of each table's columns, as schemas/tables.md has them."""
    found: dict[str, list[tuple[str, str, bool]]] = {}
    for line in text.splitlines():
        if name := re.fullmatch(r"## (\w+)", line):
            columns = found.setdefault(name[1], [])
        elif column := re.match(r"\| (\w+) \| ([A-Z ]+) \| (yes|no) \|", line):
            columns.append((column[1], column[2], column[3] == "yes"))
    return found


def write_file(connection, file: pathlib.Path, columns: list[tuple[str, str, bool]], some: list[dict]) -> None:
    """Columns that may not be null and were not given hold nothing or 0."""
    blank = {"VARCHAR": "", "BIGINT": 0, "TIMESTAMP WITH TIME ZONE": FIRST}
    needed = {name: blank[kind] for name, kind, null in columns if not null}
    known = {name for name, _, _ in columns} | {"hour"}
    lines = file.with_suffix(".json")
    with open(lines, "w", encoding="utf-8") as text:
        for row in some:
            assert row.keys() <= known, (file, row.keys() - known)
            json.dump({**needed, **row}, text, default=str)
            text.write("\n")
    typed = ", ".join(f"'{name}': '{kind}'" for name, kind, _ in columns)
    read = f"SELECT * FROM read_json('{lines}', format = 'newline_delimited', columns = {{{typed}}})"
    connection.execute(f"COPY ({read}) TO '{file}' (FORMAT parquet)")
    lines.unlink()


def reconciliation() -> None:
    def holding(source, holding_id, pod, start, end, hour=0, **columns) -> None:
        times = {"from_at": at(start), "to_at": at(end), "interval_from": at(start), "observed_at": at(end)}
        names = {"node": "w", "namespace": "ns", "pod": pod, "source": source, "holding_id": holding_id}
        add("allocations", hour, **names, **times, **columns)

    # Two devices by number, named 1.5 s after the bind; both containers list the second.
    holding("api", "u1", "both", 500, HOUR_MS, count=2)
    for holding_id, device in (("a", "GPU-a"), ("b", "GPU-b"), ("c", "GPU-b")):
        holding("podres", holding_id, "both", 2000, HOUR_MS, device=device, ids=1, replica_ids=device)
    holding("api", "u2", "unseen", HOUR_MS // 2, HOUR_MS, count=1)
    holding("api", "u2", "unseen", HOUR_MS, HOUR_MS + 250, hour=1, count=1)
    # Two replicas of a shared device, of a pod that the API server's side does not know.
    holding("podres", "d", "unknown", 0, HOUR_MS, device="GPU-s", ids=2, replica_ids="GPU-s::0,GPU-s::1")
    holding("import", "e", "other", 0, HOUR_MS, device="GPU-x")


fragmentation()
reconciliation()
gangs()
waits()
serving()
write(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
