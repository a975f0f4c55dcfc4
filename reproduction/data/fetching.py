"""Fetch the files of datasets from where they are published. A file appears complete and intact, or not at all."""

import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from opu.checks import optional
from reproduction.data.catalogue import DataFile, dataset
from reproduction.data.download import RetryPolicy, SourceFailed, download, progress_bar
from reproduction.data.local import find, folder_to_fetch_into, locate, places, problem
from reproduction.data.staging import staging

DEFAULT_RETRY = RetryPolicy()


def fetch(
    name: str, folder: Path | None = None, *, force: bool = False, retry: RetryPolicy = DEFAULT_RETRY
) -> list[Path]:
    """Download the missing files of a dataset; return the paths of all its files.

    Args:
        name: Name of the dataset, a key of ``reproduction.data.DATASETS``.
        folder: Folder to look in and to fetch into. By default, all folders of :func:`reproduction.data.places` are searched,
            and files go into the first one that can be written to.
        force: Whether to replace damaged files. By default, a damaged file is an error and stays as it is.
        retry: Timeouts and number of attempts.
    """
    return fetch_all([name], folder, force=force, retry=retry)


def fetch_all(
    names: Sequence[str], folder: Path | None = None, *, force: bool = False, retry: RetryPolicy = DEFAULT_RETRY
) -> list[Path]:
    """Like :func:`fetch` for several datasets; an archive that they share is downloaded once."""
    files = list(dict.fromkeys(file for name in names for file in dataset(name).files))
    target = folder or folder_to_fetch_into()
    groups: dict[tuple[str, ...], list[DataFile]] = {}  # by addresses: files of one archive are fetched together
    for file in files:
        if not _is_needed(file, folder, target, force):
            continue
        if not file.sources:
            raise ValueError(
                f"{file.path} has no official address and cannot be fetched; copy it into {target} from where you have it."
            )
        groups.setdefault(tuple(source.url for source in file.sources), []).append(file)
    if groups:
        _pooch()  # an error here comes before any folder is made
    for urls, group in groups.items():
        _fetch_group(urls, group, target, force, retry)
    return [find(file, folder) for file in files]


def _is_needed(file: DataFile, folder: Path | None, target: Path, force: bool) -> bool:
    path = locate(file, folder)
    wrong = problem(file, path) if path else None
    if path is None or wrong is None:
        return path is None
    if not force:
        raise ValueError(
            f"{path} {wrong}; it was left as it is. Delete it, or replace it with `opu data fetch --force`."
        )
    if folder is None and not path.is_relative_to(target) and path.is_relative_to(places()[0]):
        raise ValueError(
            f"{path} {wrong}, and would be found before a copy in {target}, since its folder cannot be written to. "
            "Delete it, or set OPU_DATA to another folder."
        )
    return True


def _fetch_group(urls: Sequence[str], files: list[DataFile], target: Path, force: bool, retry: RetryPolicy) -> None:
    """Fetch files that have their addresses in common, from the first address that gives them."""
    names = " and ".join(file.path for file in files)
    log: list[str] = []
    try:
        with staging(target, _name(urls[0])) as stage:
            for number, url in enumerate(urls):
                # Another process may have fetched them in the meantime, or an archive held some of them.
                files = [file for file in files if _is_needed(file, target, target, force)]
                if not files:
                    return
                log.append(f"{url} was being read")
                try:
                    return _fetch_from(number, files, stage, target, retry)
                except SourceFailed as error:
                    log[-1] = f"{url} {error}"
            raise SourceFailed
    except SourceFailed:
        raise OSError(
            f"could not fetch {names}: {'; '.join(log)}. Nothing half-done was left behind; try again later, or put the "
            f"files into {target} by hand."
        ) from None
    except OSError as error:
        raise OSError(
            error.errno,
            f"could not fetch {names} into {target}: {error.strerror or error} ({'; '.join(log) or 'nothing was read'}). "
            "Nothing half-done was left behind; free some space, or set OPU_DATA to another folder",
        ) from error


def _fetch_from(number: int, files: Sequence[DataFile], stage: Path, target: Path, retry: RetryPolicy) -> None:
    """Fetch files from their source of this number, and move each one to its place once it is known to be intact."""
    first = files[0].sources[number]
    checksum = first.archive_checksum if first.member else files[0].checksums[0]
    whole = _retrieve(first.url, checksum, stage, retry)
    for file in files:
        ready = stage / "ready" / _name(file.path)
        ready.parent.mkdir(exist_ok=True)
        member = file.sources[number].member
        if member is None:
            os.replace(whole, ready)
        else:
            _unpack(whole, member, ready)
        wrong = problem(file, ready)
        if wrong:
            raise SourceFailed(f"gave {ready.name}, which {wrong}")
        with ready.open("rb") as content:
            os.fsync(content.fileno())
        (target / file.path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(ready, target / file.path)


def _retrieve(url: str, checksum: str | None, stage: Path, retry: RetryPolicy) -> Path:
    """Download an address into the stage, and check its checksum."""
    # Each address has its own folder, so that the bytes of one mirror are never continued with those of another.
    folder = stage / str(zlib.crc32(url.encode()))
    folder.mkdir(exist_ok=True)
    name = _name(url)
    part = folder / f"{name}.part"

    def to_file(address: str, output_file: Any, _: Any) -> None:
        with progress_bar(name) as report:
            download(address, part, retry, report)
        os.replace(part, output_file)

    with _quiet_pooch() as pooch:
        # What a killed process left may be damaged; then a second attempt downloads the file from its start.
        for _ in range(2 if part.exists() else 1):
            with suppress(ValueError):  # a wrong checksum
                return Path(pooch.retrieve(url, checksum, fname=name, path=folder, downloader=to_file))
    raise SourceFailed(f"gave a file that does not have the checksum {checksum}")


def _unpack(archive: Path, member: str, ready: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as members, members.open(member) as source, ready.open("wb") as file:
            shutil.copyfileobj(source, file)
    except KeyError:
        raise SourceFailed(f"gave an archive without {member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceFailed(f"gave a damaged archive ({error})") from error


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _pooch() -> Any:
    return optional("pooch", "fetching datasets", "data")


@contextmanager
def _quiet_pooch() -> Iterator[Any]:
    """Pooch without its messages, which would break our progress bar."""
    pooch = _pooch()
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield pooch
    finally:
        logger.setLevel(level)
