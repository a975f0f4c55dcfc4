"""The datasets of the experiments: their files found, fetched and verified, and their images and tables prepared.

Files are looked for in ``$OPU_DATA`` and then in the per-user cache; ``opu data fetch`` downloads those that are missing.
"""

from reproduction.data.catalogue import DATASETS, DataFile, Dataset, Source, data_file, dataset
from reproduction.data.download import RetryPolicy
from reproduction.data.fetching import fetch, fetch_all
from reproduction.data.local import find, locate, places, verify

__all__ = [
    "DATASETS",
    "DataFile",
    "Dataset",
    "RetryPolicy",
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
