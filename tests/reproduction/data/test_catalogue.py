"""Laws of the catalogue of datasets."""

import re

import pytest

from reproduction.data import DATASETS, data_file, dataset

FILES = list(dict.fromkeys(file for each in DATASETS.values() for file in each.files))
FORMS = [form for file in FILES for form in file.forms]


def test_paths_are_unique_and_relative():
    assert len({form.path for form in FORMS}) == len(FORMS)
    for form in FORMS:
        assert re.fullmatch(r"[a-z]+/[A-Za-z0-9_.-]+", form.path), form.path
        assert not form.path.endswith(".part")


def test_checksums_are_well_formed():
    own = [each for form in FORMS for each in form.checksums]
    assert len(set(own)) == len(own)
    archives = [source.archive_checksum for file in FILES for source in file.sources if source.archive_checksum]
    for each in own + archives:
        assert re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", each), each


def test_all_but_the_parts_have_sources():
    for name, each in DATASETS.items():
        for file in each.files:
            assert bool(file.sources) == (name != "emnist-balanced-part"), file.path
            for source in file.sources:
                assert re.match(r"https?://[a-z0-9.-]+/", source.url)
                assert "{" not in f"{source.url}{source.member}"
                assert source.archive_checksum is None or source.member
                assert source.member is None or source.url.endswith(".zip")


def test_files_of_one_address_have_all_addresses_in_common():
    """Fetching groups files by their addresses, and names the hidden folder of a group after the first one."""
    groups = {tuple(source.url for source in file.sources) for file in FILES if file.sources}
    assert len({group[0].rsplit("/", 1)[-1] for group in groups}) == len(groups)


def test_every_dataset_says_whose_it_is():
    for name, each in DATASETS.items():
        assert each.name == name
        assert each.description
        assert each.licence
        assert re.search(r"\((19|20)\d\d\)", each.citation), name


def test_sources_name_the_file():
    mirrors = [source.url for source in data_file("mnist/t10k-labels-idx1-ubyte.gz").sources]
    assert len(mirrors) == 3
    assert all(url.endswith("/t10k-labels-idx1-ubyte.gz") for url in mirrors)
    plain, archived = dataset("semeion").files[0].sources
    assert (plain.member, archived.member) == (None, "semeion.data")
    assert dataset("emnist-balanced").files[-1].sources[0].member == "gzip/emnist-balanced-mapping.txt"
    # Both sets of EMNIST share this file, so that it is fetched once.
    assert dataset("emnist-balanced").files[-1] == dataset("emnist-bymerge-test").files[-1]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no dataset 'mnits'; those that exist are mnist, emnist-balanced"):
        dataset("mnits")
