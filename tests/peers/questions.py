"""Runs every question of a folder in DuckDB and in Spark over lakes, the session in UTC, and writes each answer as CSV.

questions.py QUESTIONS TABLES.md OUT LAKE...

QUESTIONS is a folder of .sql files that run as they are; TABLES.md names the tables and columns, for tables that a lake has not
written yet. Answers go to OUT/<lake's folder name>/<engine>/<question>.csv: a line of columns, then the rows, null as nothing.
"""

import csv
import pathlib
import re
import sys

import duckdb
import spark_session


def tables(text: str) -> dict[str, list[tuple[str, str]]]:
    """Columns and types of each table, as schemas/tables.md has them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        if name := re.fullmatch(r"## (\w+)", line):
            columns = found.setdefault(name[1], [])
        elif column := re.match(r"\| (\w+) \| ([A-Z ]+) \| (?:yes|no) \|", line):
            columns.append((column[1], column[2]))
    return found


class DuckDb:
    """The lake's tables as views of DuckDB."""

    name = "duckdb"

    def __init__(self, lake: pathlib.Path, columns: dict[str, list[tuple[str, str]]]):
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")
        for table, types in columns.items():
            if any((lake / table).glob("*/*/*.parquet")):
                source = f"SELECT * FROM read_parquet('{lake}/{table}/*/*/*.parquet')"
                self.connection.execute(f"CREATE VIEW {table} AS {source}")
            else:
                typed = ", ".join(f'"{name}" {kind}' for name, kind in types)
                self.connection.execute(f"CREATE TABLE {table} ({typed})")

    def rows(self, query: str):
        answer = self.connection.execute(query)
        return [column[0] for column in answer.description], answer.fetchall()


class Spark:
    """The same of one session of Spark, which later lakes use again."""

    name = "spark"
    session = None

    def __init__(self, lake: pathlib.Path, columns: dict[str, list[tuple[str, str]]]):
        if Spark.session is None:
            Spark.session = spark_session.start(cores=1)
        for table, types in columns.items():
            if any((lake / table).glob("*/*/*.parquet")):
                frame = Spark.session.read.parquet(f"{lake}/{table}")
            else:
                types = [(name, {"VARCHAR": "STRING"}.get(kind, kind.split(" ")[0])) for name, kind in types]
                frame = Spark.session.createDataFrame([], ", ".join(f"`{name}` {kind}" for name, kind in types))
            frame.createOrReplaceTempView(table)

    def rows(self, query: str):
        frame = Spark.session.sql(query)
        return frame.columns, frame.collect()


def main() -> None:
    questions, schema, out, *lakes = map(pathlib.Path, sys.argv[1:])
    columns = tables(schema.read_text(encoding="utf-8"))
    for engine in (DuckDb, Spark):
        for lake in lakes:
            opened = engine(lake, columns)
            folder = out / lake.name / engine.name
            folder.mkdir(parents=True)
            for question in sorted(questions.glob("*.sql")):
                try:
                    names, rows = opened.rows(question.read_text(encoding="utf-8"))
                except Exception as error:
                    sys.exit(f"{engine.name} cannot answer {question}: {error}")
                with open(folder / f"{question.stem}.csv", "w", encoding="utf-8", newline="") as text:
                    writer = csv.writer(text, lineterminator="\n")
                    writer.writerow(names)
                    writer.writerows(rows)


main()
