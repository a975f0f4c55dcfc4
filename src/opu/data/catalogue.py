"""The public datasets we know: their files, what these must hash to, where they come from and whose they are."""

from dataclasses import dataclass

MNIST_PLACES = (
    "http://yann.lecun.com/exdb/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
EMNIST_ARCHIVE = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
EMNIST_ARCHIVE_SUM = "md5:58c8d27c78d21e728a6bc7b3cc06412e"
OMNIGLOT = "https://github.com/brendenlake/omniglot/raw/master/python/"
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
UCI_ARCHIVES = "https://archive.ics.uci.edu/static/public/"


@dataclass(frozen=True)
class Source:
    """An address that gives a file, either as it is or as a member of a zip archive."""

    url: str
    member: str | None = None
    archive_checksum: str | None = None  # None where the publisher packs anew from time to time


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset.

    Args:
        path: Relative to a data folder.
        checksums: As ``"sha256:..."`` or ``"md5:..."``. A file with any of them is right; the first is that of what the
            sources give.
        size: In bytes, where there is one size alone.
        sources: Official first, then mirrors; empty for a file that cannot be fetched.
        other_forms: The same content in other files, which are as good.
    """

    path: str
    checksums: tuple[str, ...]
    size: int | None = None
    sources: tuple[Source, ...] = ()
    other_forms: tuple["DataFile", ...] = ()

    @property
    def forms(self) -> tuple["DataFile", ...]:
        """This file and what may lie in its place."""
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
    """The dataset of a name."""
    if name not in DATASETS:
        raise ValueError(f"there is no dataset {name!r}; those that exist are {', '.join(DATASETS)}.")
    return DATASETS[name]


def data_file(path: str) -> DataFile:
    """The file that has a path in some dataset."""
    return next(file for each in DATASETS.values() for file in each.files if file.path == path)


def dataset_of(file: DataFile) -> Dataset:
    """The first dataset that a file belongs to."""
    return next(each for each in DATASETS.values() if file in each.files)


def _mnist(name: str, size: int, digest: str) -> DataFile:
    sources = tuple(Source(place + name) for place in MNIST_PLACES)
    return DataFile(f"mnist/{name}", (f"sha256:{digest}",), size, sources)


def _emnist(name: str, size: int | None, *digests: str) -> DataFile:
    source = Source(EMNIST_ARCHIVE, f"gzip/{name}", EMNIST_ARCHIVE_SUM)
    return DataFile(f"emnist/{name}", tuple(f"sha256:{digest}" for digest in digests), size, (source,))


# The archive's own copy, and copies whose line ends were changed on the way, hold the same table.
_EMNIST_MAPPING = _emnist(
    "emnist-balanced-mapping.txt",
    None,
    "956dc507bf69e9f31f4e3e876d22ec66124aa229b5d0bd65ab8956a8044d3ede",
    "0b57cacbe7536ef91dd14bf1384f726f436dc619f026c03aa8c14a97e8730468",
    "d33806c30c90d099c0b74c4a85849c2b77468ea459355ac3f0f2be9c9038def8",
)
_EMNIST_LICENCE = "none stated; NIST asks for a citation"
_EMNIST_CITATION = (
    "Cohen, Afshar, Tapson, van Schaik (2017), EMNIST: an extension of MNIST to handwritten letters, arXiv:1702.05373"
)
_OMNIGLOT_CITATION = (
    "Lake, Salakhutdinov, Tenenbaum (2015), Human-level concept learning through probabilistic program induction"
)

_ALL = (
    Dataset(
        "mnist",
        "handwritten digits, 60,000 and 10,000 images of 28 x 28",
        "CC BY-SA 3.0",
        "LeCun, Bottou, Bengio, Haffner (1998), Gradient-based learning applied to document recognition",
        (
            _mnist(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            _mnist(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            _mnist(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            _mnist(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    Dataset(
        "emnist-balanced",
        "digits and letters in 47 classes, 112,800 and 18,800 images of 28 x 28",
        _EMNIST_LICENCE,
        _EMNIST_CITATION,
        (
            _emnist(
                "emnist-balanced-train-images-idx3-ubyte.gz",
                28_207_740,
                "74295e75e4e9fa2c102147460ee7eb763653d5132d883a84fb88932bfb8d2db4",
            ),
            _emnist(
                "emnist-balanced-train-labels-idx1-ubyte.gz",
                80_618,
                "b46d41e5156a0a8aaaa4d18979fdd1588850fa8571018acffd5d93b325a7d6ed",
            ),
            _emnist(
                "emnist-balanced-test-images-idx3-ubyte.gz",
                4_714_707,
                "117fc12b015e37ea98bfb2cbba3f77c3782c056cdbd219b87abfc8661d7135db",
            ),
            _emnist(
                "emnist-balanced-test-labels-idx1-ubyte.gz",
                13_504,
                "a67cac948379b67270b9a4d0a01c8ec661598accf2f2b1964340b7c83cb175cd",
            ),
            _EMNIST_MAPPING,
        ),
    ),
    Dataset(
        "emnist-bymerge-test",
        "digits and letters in 47 unequal classes, 116,323 images of 28 x 28",
        _EMNIST_LICENCE,
        _EMNIST_CITATION,
        (
            _emnist(
                "emnist-bymerge-test-images-idx3-ubyte.gz",
                28_905_295,
                "5e5815ec1b522089134435f7c55e75a00960b58414793593ffff23efc0821683",
            ),
            _emnist(
                "emnist-bymerge-test-labels-idx1-ubyte.gz",
                79_351,
                "8bda1516255683ba9071e141947ca0c91a911176065cdd6259b0b4d8dc5b5f35",
            ),
            _EMNIST_MAPPING,
        ),
    ),
    Dataset(
        "emnist-balanced-part",
        "the last 9,120 training and 304 test images of emnist-balanced",
        _EMNIST_LICENCE,
        _EMNIST_CITATION,
        (
            DataFile(
                "emnist/emnist-balanced-train-images-rows-103680-112799-idx3-ubyte.gz",
                ("sha256:20ba7e0111622641eccf45a37c84aaa854bdb8bacb2f30e284255aa7343cca40",),
                2_306_891,
            ),
            DataFile(
                "emnist/emnist-balanced-test-images-rows-18496-18799-idx3-ubyte.gz",
                ("sha256:7c6987b7a7395efaf7eea41a9fac1709cd8204c2fe6e0374fea27cdf9f6e9a13",),
                78_075,
            ),
        ),
    ),
    Dataset(
        "omniglot-evaluation",
        "659 characters of 20 alphabets, 13,180 drawings of 105 x 105",
        "MIT",
        _OMNIGLOT_CITATION,
        (
            DataFile(
                "omniglot/images_evaluation.zip",
                (
                    "md5:6b91aef0f799c5bb55b94e3f2daec811",
                    # A zip that was packed anew, with the same pictures.
                    "sha256:7fd4f63de21cc4a4e0abb7d2f4b8d5491637b42651c1817c538392ae00186206",
                ),
                sources=(Source(OMNIGLOT + "images_evaluation.zip"),),
            ),
        ),
    ),
    Dataset(
        "omniglot-background",
        "964 characters of 30 alphabets, 19,280 drawings of 105 x 105",
        "MIT",
        _OMNIGLOT_CITATION,
        (
            DataFile(
                "omniglot/images_background.zip",
                ("md5:68d2efa1b9178cc56df9314c21c6e718",),
                sources=(Source(OMNIGLOT + "images_background.zip"),),
            ),
        ),
    ),
    Dataset(
        "semeion",
        "handwritten digits, 1,593 binary images of 16 x 16",
        "CC BY 4.0, as listed at UCI",
        "Tactile Srl, Brescia; donated to Semeion Research Center of Sciences of Communication, Rome (1994)",
        (
            DataFile(
                "semeion/semeion.data",
                # Its published md5 is cb545d371d2ce14ec121470795a77432; this is the longer sum of the same bytes.
                ("sha256:f43228ae3da5ea6a3c95069d53450b86166770e3b719dcc333182128fe08d4b1",),
                2_889_702,
                (
                    Source(UCI + "semeion/semeion.data"),
                    Source(UCI_ARCHIVES + "178/semeion+handwritten+digit.zip", "semeion.data"),
                ),
                other_forms=(
                    DataFile(
                        "semeion/semeion.data.gz",
                        ("sha256:800f5cdf2148b690246eb43db9bee555001aab0237dd082e618fe3bef360ee19",),
                        48_604,
                    ),
                ),
            ),
        ),
    ),
    Dataset(
        "pima",
        "diabetes among Pima women, 768 rows of 8 features",
        "none stated",
        "National Institute of Diabetes and Digestive and Kidney Diseases; Smith et al. (1988), Using the ADAP learning "
        "algorithm to forecast the onset of diabetes mellitus",
        (
            DataFile(
                "pima/pima-indians-diabetes.data.csv",
                ("sha256:6bfe5d0f379d17a0e0819b996407e3c09bf80febd4287f2ed212190dfff154af",),
                23_278,
                (Source("https://raw.githubusercontent.com/jbrownlee/Datasets/master/pima-indians-diabetes.data.csv"),),
            ),
        ),
    ),
    Dataset(
        "spambase",
        "mails that are spam or not, 4,601 rows of 57 features",
        "CC BY 4.0, as listed at UCI",
        "Hopkins, Reeber, Forman, Suermondt (1999), Spambase, UCI Machine Learning Repository",
        (
            DataFile(
                "spambase/spambase.data",
                ("sha256:b1ef93de71f97714d3d7d4f58fc9f718da7bbc8ac8a150eff2778616a8097b12",),
                702_942,
                (
                    Source(UCI + "spambase/spambase.data"),
                    Source(UCI_ARCHIVES + "94/spambase.zip", "spambase.data"),
                ),
            ),
        ),
    ),
)

DATASETS = {each.name: each for each in _ALL}
