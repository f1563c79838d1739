"""What a process loads that needs only a part of forebay."""

import subprocess
import sys

import forebay


def loaded(program):
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys; {program}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return shown.stdout.split()


def test_the_stateful_processor_is_made_without_what_runs_it():
    """Spark's planning waits for a process that does this."""
    modules = loaded("import forebay.spark.worker.stateful_processor")
    ours = {"errors", "spark", "spark.worker", "spark.worker.stateful_processor", "spark.worker.startup"}
    assert {name for name in modules if name.startswith("forebay.")} == {f"forebay.{name}" for name in ours}
    assert not [name for name in modules if name.startswith(("numpy", "pyarrow", "pandas", "polars", "numba"))]


def test_the_operator_is_loaded_without_the_driver_and_compiled_loops():
    modules = loaded("import forebay.spark.worker.operator")
    assert "forebay.spark.worker.operator" in modules
    assert not [
        name for name in modules if name.startswith(("forebay.spark.driver", "forebay.api", "numba", "polars", "pandas"))
    ]


def test_the_agent_is_loaded_without_compiled_loops():
    """The first task of a host waits until it answers."""
    modules = loaded("import forebay.replication.agent")
    assert not [name for name in modules if name.startswith(("numba", "polars", "pandas", "pyspark"))]


def test_public_names_are_there_when_they_are_asked_for():
    assert "forebay.api" in loaded("import forebay as fb; fb.groupBy")
    assert "forebay.api" in loaded("from forebay import *; groupBy")
    assert "forebay.api" not in loaded("from forebay import errors")
    assert set(forebay.__all__) <= set(dir(forebay))


def test_a_name_that_there_is_not_is_no_attribute():
    assert not hasattr(forebay, "group_by")
    assert not hasattr(forebay, "_private")
    assert not hasattr(forebay, "group.by")


def test_a_name_that_was_given_another_value_keeps_it(monkeypatch):
    monkeypatch.setattr(forebay, "window", None)
    assert not hasattr(forebay, "group_by")
    assert forebay.window is None
