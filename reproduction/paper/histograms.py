"""How scores of in-distribution and OOD inputs are distributed, counted when a row is judged."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from opu.measures import named
from opu.prediction import Prediction

NUM_BINS = 40


def count_scores(inside: Prediction, outside: Mapping[str, Prediction]) -> dict[str, Any]:
    """For C and N the edges of the bins, and how many inputs of each set fall into them; the test set is ``test``.

    The bins span all but the outermost hundredth of the scores; what lies beyond is counted in the bins at the ends.
    """
    sets = {"test": inside, **outside}
    result = {}
    for measure in named("C", "N"):
        scores = {name: prediction.scores[measure] for name, prediction in sets.items()}
        low, high = np.quantile(np.concatenate(list(scores.values())), (0.005, 0.995))
        edges = np.linspace(low, max(high, low + 1e-9), NUM_BINS + 1)
        counts = {name: np.histogram(s.clip(edges[0], edges[-1]), edges)[0].tolist() for name, s in scores.items()}
        result[measure] = {"edges": [round(float(edge), 4) for edge in edges], "counts": counts}
    return result
