import pytest

from forebay.errors import InvalidArgument
from forebay.harness import flights
from forebay.harness.driver import Driver
from forebay.harness.events import Events
from forebay.harness.experiment import Experiment
from forebay.harness.flights import Flights
from forebay.harness.operators import ContinuousJoin


def test_every_landing_follows_a_departure_of_its_plane_and_time_never_falls():
    events = Events.joined(list(Flights().blocks()))
    assert len(events) > 600_000
    assert (events.time[1:] >= events.time[:-1]).all()
    departed = int((~events.final).sum())
    assert departed > events.final.sum() > departed - 2000  # some were diverted
    in_the_air: dict = {}
    for key, landed in zip(events.key.tolist(), events.final.tolist(), strict=True):
        in_the_air[key] = in_the_air.get(key, 0) + (-1 if landed else 1)
        assert in_the_air[key] >= 0


def test_flights_are_a_source_of_experiments(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(
        'workload = "tumbling-incremental"\n[[source]]\nformat = "flights"\nkey = "carrier"\nsize = "distance"\n'
    )
    source = Experiment.read(path).streams[0]
    assert (source.key, source.size) == ("carrier", "distance")
    assert next(source.blocks()).size.max() == 4983  # to Honolulu
    path.write_text(path.read_text().replace('"carrier"', '"airline"'))
    with pytest.raises(InvalidArgument, match=r"has no column airline; it has tailnum, carrier"):
        next(Experiment.read(path).streams[0].blocks())


def test_landings_end_what_departures_begin():
    accesses = Driver(ContinuousJoin()).accesses([Flights(), Flights()])
    assert {0, 1, 2, 3} == {code for batch in [next(accesses)] for code in batch["operation"].to_pylist()}


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    flights._table.cache_clear()
    with pytest.raises(InvalidArgument, match=r"pip install '\.\[harness\]'"):
        next(Flights().blocks())
