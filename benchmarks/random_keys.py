"""What a micro-batch costs that reads and writes keys from all over the state, by the size of the state.

    python benchmarks/random_keys.py [GB ...]

The query is `latest` of `workloads`, in one local session with two state partitions. When the state is there, 16
micro-batches of 10,000 rows come; printed are the milliseconds of ``addBatch`` of the last eight, and their median.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from session import spark_session

from workloads import Latest

ALL_AT_ONCE, MICRO_BATCHES, COUNTED = 25, 16, 8


def main() -> None:
    spark = spark_session()
    for gigabytes in [float(text) for text in sys.argv[1:]] or [0.2, 2.0]:
        with tempfile.TemporaryDirectory() as directory:
            units = round(gigabytes * 1e9 / Latest.state_bytes)
            source = Latest(Path(directory, "source"), units)
            writer = source.results(spark, "forebay").writeStream.format("noop")
            query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()
            while source.count < units:
                source.link(min(ALL_AT_ONCE, units - source.count))
                query.processAllAvailable()
            for _ in range(MICRO_BATCHES):
                source.link()
                query.processAllAvailable()
            times = [each.durationMs["addBatch"] for each in query.recentProgress if each.numInputRows == source.rows]
            query.stop()
        last = times[-COUNTED:]
        print(f"{gigabytes:g} GB: {statistics.median(last):.0f} ms ({', '.join(map(str, last))})", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
