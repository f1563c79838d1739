"""Public: realistic state accesses of streaming operators without a stream processor: Gadget (EuroSys '22) for Python.

`events` makes streams of events, `driver` turns them into the accesses that an operator makes to its state, `access` keeps
those in files, `analysis` describes them, `stores` has stores to drive with them, and `evaluator` drives and measures them.
Nothing here needs Spark.
"""
