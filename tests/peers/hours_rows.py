"""Runs one SELECT over a lake in DuckDB or Spark, the session in UTC, and prints its rows, one JSON list a line, columns first.

hours_rows.py duckdb|spark FILE.sql
"""

import datetime
import json
import sys


def duckdb_rows(query: str):
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    answer = connection.execute(query)
    return [column[0] for column in answer.description], answer.fetchall()


def spark_rows(query: str):
    import spark_session

    session = spark_session.start(cores=2)
    try:
        frame = session.sql(query)
        return frame.columns, [tuple(row) for row in frame.collect()]
    finally:
        session.stop()


def plain(value):
    """Instants as milliseconds since 1970."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:  # Spark's are of the machine's zone
            value = value.astimezone()
        return round(value.timestamp() * 1000)
    return value


def main() -> None:
    engine, file = sys.argv[1:]
    with open(file, encoding="utf-8") as text:
        query = text.read()
    names, rows = {"duckdb": duckdb_rows, "spark": spark_rows}[engine](query)
    for row in [names, *rows]:
        print(json.dumps([plain(value) for value in row]))


main()
