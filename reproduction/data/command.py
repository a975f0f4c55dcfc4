"""What ``opu data`` does: list the datasets, fetch them, and verify the files that are here."""

from rich.console import Console

from opu.tables import print_table
from opu.terminal import printable, say
from reproduction.data import DATASETS, Dataset, dataset, fetch_all, locate, places, verify


def show_datasets(console: Console) -> None:
    """Print the datasets, and which of their files are here."""
    rows = [[each.name, each.description, *_here_and_size(each), each.licence] for each in DATASETS.values()]
    print_table(console, ("name", "what", "here", "size", "licence"), rows)
    say(console, f"Files are looked for in {' and '.join(map(str, places()))}.", soft_wrap=True)


def fetch_datasets(names: list[str], force: bool) -> None:
    """Download the missing files of datasets, and print the paths of all their files."""
    for path in fetch_all(names, force=force):
        print(printable(str(path)))


def verify_datasets(names: list[str]) -> None:
    """Compare files with the published sizes and checksums; print a line for each."""
    chosen = [dataset(name) for name in names] if names else list(DATASETS.values())
    errors = []
    for file in dict.fromkeys(file for each in chosen for file in each.files):
        path, state = locate(file), "right"
        try:
            verify(file)
        except ValueError as error:
            state = "damaged" if path else "not here"
            if path or names:
                errors.append(str(error))
        print(printable(f"{state:9}{path or file.path}"))
    if errors:
        others = len(errors) - 1  # the lines above name them; one sentence says what to do
        raise ValueError(errors[0] + (f" The same goes for {others} more of the files above." if others else ""))


def _here_and_size(each: Dataset) -> tuple[str, str]:
    paths = [locate(file) for file in each.files]
    here, needed = sum(path is not None for path in paths), len(paths)
    sizes = [path.stat().st_size if path else file.size for path, file in zip(paths, each.files, strict=True)]
    known = [size for size in sizes if size is not None]
    return (
        "yes" if here == needed else f"{here} of {needed}" if here else "no",
        f"{sum(known) / 1e6:.2f} MB" if len(known) == needed else "not known",
    )
