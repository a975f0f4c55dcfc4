"""Missing values: imputed by the median, indicated, and put back by the inverse."""

import numpy as np
import torch

from opu.students.impute import Impute, Prepare

ROWS = np.array([[1.0, np.nan, 5.0], [2.0, 4.0, 5.0], [9.0, np.nan, 5.0], [3.0, 8.0, 5.0]])


def test_the_median_is_imputed_and_an_indicator_appended():
    impute = Impute.fit(ROWS)
    expected = [[1, 6, 5, 1], [2, 4, 5, 0], [9, 6, 5, 1], [3, 8, 5, 0]]
    np.testing.assert_array_equal(impute(torch.from_numpy(ROWS)), expected)


def test_a_column_complete_in_training_has_no_indicator_and_makes_a_row_unexpected_when_missing():
    impute = Impute.fit(ROWS)
    new = torch.tensor([[np.nan, np.nan, 1.0], [1.0, np.nan, 1.0], [1.0, 2.0, np.nan]], dtype=torch.float64)
    np.testing.assert_array_equal(impute(new), [[2.5, 6, 1, 1], [1, 6, 1, 1], [1, 2, 5, 0]])
    assert impute.unexpected(new).tolist() == [True, False, True]


def test_a_column_that_is_missing_everywhere_is_filled_with_zero():
    empty = Impute.fit(np.array([[np.nan, 1.0], [np.nan, 2.0]]))
    np.testing.assert_array_equal(empty(torch.tensor([[7.0, np.nan]])), [[7, 1.5, 0]])


def test_the_inverse_gives_the_rows_back_with_their_gaps():
    prepare = Prepare.fit(ROWS)
    standardised = prepare(torch.from_numpy(ROWS))
    assert standardised.shape == (4, 4)
    np.testing.assert_allclose(standardised.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(prepare.inverse(standardised), ROWS, atol=1e-12)
    np.testing.assert_allclose(prepare.inverse_imputed(standardised)[0], [1, 6, 5], atol=1e-12)


def test_a_description_gives_the_same_module_and_an_old_one_imputes_the_mean():
    prepare = Prepare.fit(ROWS)
    again = Prepare.from_description(prepare.description())
    x = torch.from_numpy(ROWS)
    assert torch.equal(again(x), prepare(x))
    old = Prepare.from_description({"mean": [1.0, 2.0], "scale": [1.0, 4.0]})
    gaps = torch.tensor([[np.nan, 4.0]], dtype=torch.float64)
    np.testing.assert_array_equal(old(gaps), [[0.0, 0.5]])
    assert old.unexpected(gaps).tolist() == [True]
