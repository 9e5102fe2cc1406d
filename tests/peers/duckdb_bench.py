"""Runs one query over a lake in DuckDB, all tables as views; prints seconds and peak MiB. Peer of query/benches/fleet.rs."""

import pathlib
import resource
import sys
import time

import duckdb

lake, query = pathlib.Path(sys.argv[1]), sys.argv[2]
session = duckdb.connect()
session.execute("SET TimeZone = 'UTC'")
begin = time.perf_counter()
for folder in lake.iterdir():
    if folder.is_dir() and not folder.name.startswith("_"):
        session.execute(f"CREATE VIEW {folder.name} AS SELECT * FROM read_parquet('{folder}/*/*/*.parquet')")
session.execute(query).fetchall()
print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
