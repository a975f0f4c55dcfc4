"""Members of scikit-learn's ensembles as particles."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import BaggingClassifier, GradientBoostingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from opu.sklearn import OnePassClassifier
from opu.teachers import SklearnEnsemble


@pytest.fixture
def table():
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 4))
    return X, np.array(["x", "y", "z"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]


ENSEMBLES = {
    "forest": RandomForestClassifier(12, min_samples_leaf=5, random_state=0),
    "bagging": BaggingClassifier(LogisticRegression(), 8, max_features=0.5, random_state=0),
    "voting": VotingClassifier(
        [("tree", DecisionTreeClassifier(max_depth=3)), ("line", LogisticRegression())], voting="soft"
    ),
}


@pytest.mark.parametrize("name", ENSEMBLES)
def test_the_mean_of_all_particles_is_the_ensembles_own_prediction(name, table):
    X, y = table
    ensemble = ENSEMBLES[name].fit(X, y)
    particles = SklearnEnsemble(ensemble, floor=1e-9)(torch.from_numpy(X), 100)
    assert particles.shape == (len(ensemble.estimators_), 300, 3)
    np.testing.assert_allclose(particles.exp().mean(0).numpy(), ensemble.predict_proba(X), atol=1e-5)


def test_fewer_particles_are_a_choice_of_members(table):
    teacher = SklearnEnsemble(ENSEMBLES["forest"].fit(*table))
    x = torch.from_numpy(table[0][:5])
    few, every = teacher(x, 4), teacher(x, 12)
    assert few.shape == (4, 5, 3)
    for particle in few:
        assert any(torch.equal(particle, other) for other in every)


def test_a_member_that_knows_no_class_leaves_it_at_the_floor():
    X = np.arange(40.0)[:, None]
    y = np.array([0] * 38 + [1, 2])
    teacher = SklearnEnsemble(BaggingClassifier(DecisionTreeClassifier(), 20, random_state=0).fit(X, y), floor=1e-3)
    particles = teacher(torch.from_numpy(X), 20).exp()
    torch.testing.assert_close(particles.sum(-1), torch.ones(20, 40))
    assert float(particles.min()) == pytest.approx(1e-3, rel=0.01)


def test_what_is_no_particle_is_refused(table):
    with pytest.raises(ValueError, match="RandomForestClassifier has no estimators_"):
        SklearnEnsemble(RandomForestClassifier())
    with pytest.raises(ValueError, match="GradientBoostingClassifier do not each give class probabilities"):
        SklearnEnsemble(GradientBoostingClassifier(n_estimators=3).fit(*table))
    with pytest.raises(ValueError, match="at least two members"):
        SklearnEnsemble(RandomForestClassifier(1).fit(*table))


def test_an_ensemble_of_other_labels_is_refused(table):
    X, y = table
    forest = RandomForestClassifier(5, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="fitted to the classes x, y, z and the labels here are a, b, c"):
        OnePassClassifier(forest, epochs=1).fit(X, np.array(["a", "b", "c"])[np.searchsorted(["x", "y", "z"], y)])
