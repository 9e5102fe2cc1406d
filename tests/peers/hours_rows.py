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
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        # The reader that this one stands in for does not know byte-stream-split floats.
        "spark.sql.parquet.enableVectorizedReader": "false",
        # A small lake: planning and compiling for a cluster would take minutes.
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.log.level": "ERROR",
        "spark.sql.constraintPropagation.enabled": "false",
        "spark.sql.maxPlanStringLength": "1000",
        # Nor is there time for the machine code of a long run, or more than one collector thread.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
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
