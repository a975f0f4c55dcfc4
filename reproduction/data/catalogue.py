"""The public datasets, read from ``catalogue.toml``: their files, checksums, addresses and licences."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any


@dataclass(frozen=True)
class Source:
    """An address that gives a file, either as it is or as a member of a zip archive.

    Args:
        url: Address of the file or of the archive.
        member: Name of the file in the archive; None if the address gives the file itself.
        archive_checksum: Checksum of the archive; None if the publisher packs it anew from time to time.
    """

    url: str
    member: str | None = None
    archive_checksum: str | None = None


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset.

    Args:
        path: Path relative to a data folder.
        checksums: ``"sha256:..."`` or ``"md5:..."``. A file with any of them is intact; the first one belongs to the
            file that the sources give.
        size: Number of bytes; None if intact files differ in size.
        sources: The official address, then mirrors; empty for a file that cannot be fetched.
        other_forms: Files that hold the same content and may lie in its place.
    """

    path: str
    checksums: tuple[str, ...]
    size: int | None = None
    sources: tuple[Source, ...] = ()
    other_forms: tuple["DataFile", ...] = ()

    @property
    def forms(self) -> tuple["DataFile", ...]:
        """This file and its other forms."""
        return (self, *self.other_forms)


@dataclass(frozen=True)
class Dataset:
    """Files that belong together, under one licence."""

    name: str
    description: str
    licence: str
    citation: str
    files: tuple[DataFile, ...]


def dataset(name: str) -> Dataset:
    """The dataset with this name."""
    if name not in DATASETS:
        raise ValueError(f"there is no dataset {name!r}; those that exist are {', '.join(DATASETS)}.")
    return DATASETS[name]


def data_file(path: str) -> DataFile:
    """The file with this path, of whichever dataset."""
    return next(file for each in DATASETS.values() for file in each.files if file.path == path)


def dataset_of(file: DataFile) -> Dataset:
    """The first dataset that a file belongs to."""
    return next(each for each in DATASETS.values() if file in each.files)


def _dataset(name: str, *, files: Sequence[Any], sources: Sequence[Any] = (), **texts: str) -> Dataset:
    return Dataset(name, files=tuple(_file(sources, **each) for each in files), **texts)


def _file(
    sources: Sequence[Any], path: str, checksums: list[str], size: int | None = None, other_forms: Sequence[Any] = ()
) -> DataFile:
    name = PurePosixPath(path).name
    named = (Source(**{key: text.replace("{name}", name) for key, text in each.items()}) for each in sources)
    return DataFile(path, tuple(checksums), size, tuple(named), tuple(_file((), **each) for each in other_forms))


def _read(path: Path) -> dict[str, Dataset]:
    return {name: _dataset(name, **table) for name, table in tomllib.loads(path.read_text("utf-8")).items()}


DATASETS = _read(Path(__file__).with_name("catalogue.toml"))
