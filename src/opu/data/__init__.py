"""Public datasets: found in a folder or fetched, and checked by their sums.

Files are looked for in ``$OPU_DATA`` and then in the per-user cache; ``opu data fetch`` brings those that are missing.
"""

from opu.data.catalogue import DATASETS, DataFile, Dataset, Source, data_file, dataset
from opu.data.download import Patience
from opu.data.fetch import fetch, fetch_all
from opu.data.places import find, locate, places, verify

__all__ = [
    "DATASETS",
    "DataFile",
    "Dataset",
    "Patience",
    "Source",
    "data_file",
    "dataset",
    "fetch",
    "fetch_all",
    "find",
    "locate",
    "places",
    "verify",
]
