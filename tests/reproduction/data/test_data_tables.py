"""Tables as they were published."""

import numpy as np
import pytest

from reproduction.data.tables import pima, spambase
from tests.reproduction.data.made_up import need, write

PIMA, SPAMBASE = "pima/pima-indians-diabetes.data.csv", "spambase/spambase.data"


def rows(count, width, label=1):
    return "".join(f"{','.join(str(row + column) for column in range(width))},{label}\r\n" for row in range(count))


def test_made_up_tables(tmp_path):
    write(tmp_path, PIMA, rows(768, 8, label=0).encode())
    write(tmp_path, SPAMBASE, rows(4601, 57).encode())
    table = pima(tmp_path)
    assert table.features.shape == (768, 8)
    assert table.features[5].tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    assert table.feature_names[1] == "glucose"
    assert (table.labels == 0).all()
    table = spambase(tmp_path)
    assert table.features.shape == (4601, 57)
    assert table.labels.dtype == np.int64
    assert len(set(table.feature_names)) == 57


@pytest.mark.parametrize("content", [rows(767, 8), rows(768, 8, label=2), rows(768, 8, label=0.5)])
def test_damaged_tables(tmp_path, content):
    write(tmp_path, PIMA, content.encode())
    with pytest.raises(
        ValueError, match=r"must hold 768 rows that end in a label of 0 or 1; got 76\d rows with labels"
    ):
        pima(tmp_path)


def test_a_missing_table_names_the_command(tmp_path):
    with pytest.raises(ValueError, match="`opu data fetch spambase`"):
        spambase(tmp_path)


def test_a_table_is_verified_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("OPU_DATA", str(tmp_path))
    write(tmp_path, PIMA, rows(768, 8, label=0).encode())
    with pytest.raises(ValueError, match="bytes, but 23,278 are right; it is damaged"):
        pima()


def test_the_real_pima(data_folder):
    need(data_folder, PIMA)
    table = pima(data_folder)
    assert table.features.shape == (768, 8)
    assert table.labels.sum() == 268
    zeros = dict(zip(table.feature_names, (table.features == 0).sum(0).tolist(), strict=True))
    assert zeros["pregnancies"] == 111
    assert [zeros[name] for name in ("glucose", "blood_pressure", "skin_fold", "insulin", "body_mass_index")] == [
        *(5, 35, 227, 374, 11)
    ]


def test_the_real_spambase(data_folder):
    need(data_folder, SPAMBASE)
    table = spambase(data_folder)
    assert table.features.shape == (4601, 57)
    assert table.labels.sum() == 1813
    assert (np.diff(table.labels) <= 0).all()
    assert len(np.unique(np.column_stack([table.features, table.labels]), axis=0)) == 4601 - 391
