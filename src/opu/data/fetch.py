"""Bring the files of datasets from where they are published. A file appears whole and right, or not at all."""

import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from opu.data.catalogue import DataFile, dataset
from opu.data.download import Patience, SourceFailed, download, progress_bar
from opu.data.places import find, folder_to_fetch_into, locate, places, problem
from opu.data.staging import staging

PATIENCE = Patience()


def fetch(name: str, folder: Path | None = None, *, force: bool = False, patience: Patience = PATIENCE) -> list[Path]:
    """Bring what is missing of a dataset; the paths of all its files.

    Args:
        name: As in the catalogue.
        folder: Where to look and to fetch into. Unless given, the places of :func:`opu.data.places` are looked through,
            and files go into the first that can be written to.
        force: Replace a file that is there and wrong. Without it such a file is refused and left as it is.
        patience: Timeouts and number of attempts.
    """
    return fetch_all([name], folder, force=force, patience=patience)


def fetch_all(
    names: Sequence[str], folder: Path | None = None, *, force: bool = False, patience: Patience = PATIENCE
) -> list[Path]:
    """Like :func:`fetch` for several datasets; an archive that they share is brought once."""
    files = list(dict.fromkeys(file for name in names for file in dataset(name).files))
    target = folder or folder_to_fetch_into()
    missing = [file for file in files if _is_missing(file, folder, target, force)]
    for file in missing:
        if not file.sources:
            raise ValueError(
                f"{file.path} has no official address and cannot be fetched; copy it into {target} from where you have it."
            )
    if missing:
        _pooch()  # without it no folder is made
    for together in _by_addresses(missing):
        _fetch_together(together, target, force, patience)
    return [find(file, folder) for file in files]


def _is_missing(file: DataFile, folder: Path | None, target: Path, force: bool) -> bool:
    path = locate(file, folder)
    wrong = problem(file, path) if path else "is not there"
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


def _by_addresses(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Files that come from the same addresses, and so from the same archives, belong together."""
    groups: dict[tuple[str, ...], list[DataFile]] = {}
    for file in files:
        groups.setdefault(tuple(source.url for source in file.sources), []).append(file)
    return list(groups.values())


def _fetch_together(files: list[DataFile], target: Path, force: bool, patience: Patience) -> None:
    addresses = [source.url for source in files[0].sources]
    names = " and ".join(file.path for file in files)
    said: list[str] = []
    try:
        with staging(target, addresses[0].rsplit("/", 1)[-1]) as stage:
            for number, address in enumerate(addresses):
                # Another fetch may have brought them while this one waited, or an archive some of them.
                files = [file for file in files if _is_missing(file, target, target, force)]
                if not files:
                    return
                said.append(f"{address} was being read")
                try:
                    return _bring(files, number, stage, target, patience)
                except SourceFailed as error:
                    said[-1] = f"{address} {error}"
            raise SourceFailed
    except SourceFailed:
        raise OSError(
            f"could not fetch {names}: {'; '.join(said)}. Nothing half-done was left behind; try again later, or put the "
            f"files into {target} by hand."
        ) from None
    except OSError as error:
        raise OSError(
            error.errno,
            f"could not fetch {names} into {target}: {error.strerror or error} ({'; '.join(said) or 'nothing was read'}). "
            "Nothing half-done was left behind; free some space, or set OPU_DATA to another folder",
        ) from error


def _bring(files: Sequence[DataFile], number: int, stage: Path, target: Path, patience: Patience) -> None:
    """Files from the source of a number, each put in its place when it is right."""
    sources = [file.sources[number] for file in files]
    is_archive = sources[0].member is not None
    checksum = sources[0].archive_checksum if is_archive else files[0].checksums[0]
    whole = _retrieve(sources[0].url, checksum, stage, patience)
    for file, source in zip(files, sources, strict=True):
        # By its own name, since that is how its form is known.
        ready = stage / "ready" / Path(file.path).name
        ready.parent.mkdir(exist_ok=True)
        if source.member is not None:
            _unpack(whole, source.member, ready)
        else:
            os.replace(whole, ready)
        wrong = problem(file, ready)
        if wrong:
            raise SourceFailed(f"gave {ready.name}, which {wrong}")
        _put_in_place(ready, target / file.path)
    whole.unlink(missing_ok=True)


def _retrieve(url: str, checksum: str | None, stage: Path, patience: Patience) -> Path:
    """A file of the stage that holds what is at an address, of the right checksum."""
    # Each address has a folder, so that one mirror's bytes are not continued with another's.
    kept = stage / str(zlib.crc32(url.encode()))
    kept.mkdir(exist_ok=True)
    part = kept / f"{url.rsplit('/', 1)[-1]}.part"
    try:
        if part.exists():
            # What a killed process left may be spoilt; then the whole file deserves a try.
            with suppress(ValueError):
                return _retrieve_once(url, checksum, part, patience)
        return _retrieve_once(url, checksum, part, patience)
    except ValueError as error:
        shutil.rmtree(kept)
        raise SourceFailed(f"gave a file that has not the checksum {checksum}") from error
    except SourceFailed:
        shutil.rmtree(kept)
        raise


def _retrieve_once(url: str, checksum: str | None, part: Path, patience: Patience) -> Path:
    pooch = _pooch()
    name = part.name.removesuffix(".part")
    with progress_bar(name) as report, _quiet(pooch):

        def bring(address: str, output_file: Any, _: Any) -> None:
            download(address, part, patience, report)
            os.replace(part, output_file)

        return Path(pooch.retrieve(url, checksum, fname=name, path=part.parent, downloader=bring))


def _unpack(archive: Path, member: str, ready: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as members, members.open(member) as source, ready.open("wb") as file:
            shutil.copyfileobj(source, file)
    except KeyError:
        raise SourceFailed(f"gave an archive without {member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceFailed(f"gave a damaged archive ({error})") from error


def _put_in_place(ready: Path, path: Path) -> None:
    with ready.open("rb") as file:
        os.fsync(file.fileno())
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(ready, path)


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise ImportError('fetching datasets needs pooch; install it with: pip install "opu[data]"') from error
    return pooch


@contextmanager
def _quiet(pooch: Any) -> Iterator[None]:
    """Pooch tells of every download on stderr, where our progress bar is."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)
