"""Laws of the table of datasets."""

import re

import pytest

from opu.data import DATASETS, data_file, dataset

FILES = list(dict.fromkeys(file for each in DATASETS.values() for file in each.files))


def test_paths_are_unique_and_relative():
    paths = [form.path for file in FILES for form in file.forms]
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert re.fullmatch(r"[a-z]+/[A-Za-z0-9_.-]+", path), path
        assert not path.endswith(".part")


def test_sums_are_well_formed():
    sums = [each for file in FILES for form in file.forms for each in form.checksums]
    sums += [source.archive_checksum for file in FILES for source in file.sources if source.archive_checksum]
    for each in sums:
        assert re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", each), each
    # Files of one archive share its sum; no file shares its own.
    own = [each for file in FILES for form in file.forms for each in form.checksums]
    assert len(set(own)) == len(own)


def test_all_but_the_parts_have_sources():
    for name, each in DATASETS.items():
        for file in each.files:
            assert bool(file.sources) == (name != "emnist-balanced-part"), file.path
            for source in file.sources:
                assert re.match(r"https?://[a-z0-9.-]+/", source.url)
                assert source.archive_checksum is None or source.member
                assert source.member is None or source.url.endswith(".zip")


def test_files_of_one_address_have_all_addresses_in_common():
    """Which is how fetching groups them, and how it names the hidden folder of a group."""
    groups = {tuple(source.url for source in file.sources) for file in FILES if file.sources}
    assert len({group[0].rsplit("/", 1)[-1] for group in groups}) == len(groups)


def test_every_dataset_says_whose_it_is():
    for name, each in DATASETS.items():
        assert each.name == name
        assert each.description
        assert each.licence
        assert re.search(r"\((19|20)\d\d\)", each.citation), name


def test_known_files():
    assert len(dataset("mnist").files) == 4
    assert data_file("emnist/emnist-balanced-train-images-idx3-ubyte.gz").size == 28_207_740
    assert {form.path for form in dataset("semeion").files[0].forms} == {
        "semeion/semeion.data",
        "semeion/semeion.data.gz",
    }


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no dataset 'mnits'; those that exist are mnist, emnist-balanced"):
        dataset("mnits")
