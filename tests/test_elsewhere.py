"""Names of Spark's that forebay does not have are answered with what to write."""

import copy
import pickle
import re

import pytest
from pyspark.sql import functions as F

import forebay as fb
from forebay.elsewhere import INSTEAD


def test_what_is_to_be_written_instead_is_there():
    for name, instead in INSTEAD.items():
        assert name not in fb.__all__
        for module, attribute in re.findall(r"\b(fb|F)\.(\w+)", instead):
            assert hasattr({"fb": fb, "F": F}[module], attribute), instead


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("countDistinct", "has no attribute 'countDistinct'; write fb.count_distinct"),
        ("corr", r"has no attribute 'corr'; F\.corr is Spark's, .* there is fb\.apply"),
        ("nothing_of_the_kind", "has no attribute 'nothing_of_the_kind'$"),
        ("_private", "has no attribute '_private'$"),
    ],
)
def test_a_name_that_forebay_lacks(name, message):
    with pytest.raises(AttributeError, match=message):
        getattr(fb, name)


def test_an_aggregate_is_no_column():
    total = fb.sum("price").alias("total")
    with pytest.raises(AttributeError, match=r"has no attribute 'cast': it is no Column\. Use cast on the column"):
        total.cast("double")
    assert copy.deepcopy(total) == pickle.loads(pickle.dumps(total)) == total
