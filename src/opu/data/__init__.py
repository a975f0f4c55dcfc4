"""Public datasets: found in a folder or fetched, checked by their sums, and prepared in documented ways.

Files are looked for in ``$OPU_DATA`` and then in the per-user cache; ``opu data fetch`` brings those that are missing.
"""

from opu.data.catalogue import DATASETS, DataFile, Dataset, Source, data_file, dataset
from opu.data.download import Patience
from opu.data.fetch import fetch, fetch_all
from opu.data.images import (
    ImageSet,
    emnist_balanced,
    emnist_bymerge47,
    emnist_letters,
    mnist,
    noise,
    omniglot,
    photographs,
    semeion,
    shifted,
)
from opu.data.places import find, locate, places, verify
from opu.data.tables import Table, pima, spambase

__all__ = [
    "DATASETS",
    "DataFile",
    "Dataset",
    "ImageSet",
    "Patience",
    "Source",
    "Table",
    "data_file",
    "dataset",
    "emnist_balanced",
    "emnist_bymerge47",
    "emnist_letters",
    "fetch",
    "fetch_all",
    "find",
    "locate",
    "mnist",
    "noise",
    "omniglot",
    "photographs",
    "pima",
    "places",
    "semeion",
    "shifted",
    "spambase",
    "verify",
]
