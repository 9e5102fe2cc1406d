"""Spark as the peers start it: one machine, loopback only, the session in UTC."""

import os

SETTINGS = {
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


def start(cores: int):
    """The session; one a process."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(f"local[{cores}]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
