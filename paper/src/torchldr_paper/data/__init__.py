"""The datasets of the paper's image experiments, and a user's own.

    from torchldr_paper import data

    rectangles = data.load("rectangles")         # official if its file is found, else a stand-in
    rectangles.source, rectangles.fingerprint    # "official" | "stand-in" | "user", sha256
    x, x_test = rectangles.standardized(flat=True)
    mine = data.load("my.npz")                   # train_x, train_y, test_x, test_y: see data.user

    data.fetch("cifar10")                        # from its owner, by its checksum
    data.status()                                # what is here, for `torchldr data list`

A data folder (`data_dir`, else `$TORCHLDR_DATA`, else the user's cache folder) holds the files as
their owners publish them, each dataset in a folder of its own or all side by side; any of them may
be gzipped, or lie in its .zip, .tar, .tar.gz or .tgz archive:

    mnist/         {train,t10k}-{images-idx3,labels-idx1}-ubyte         also MNIST/raw/
    rectangles/    rectangles_{train,test}.amat                         or rectangles.zip
    mnist_bg_rot/  mnist_all_background_images_rotation_normalized_{train_valid,test}.amat
                                                              or mnist_rotation_back_image_new.zip
    mnist_noise/   mnist_noise_variations_all_{1..6}.amat     or mnist_noise_variation.tar.gz
    cifar10/       {data_batch_1..5,test_batch}.bin           or cifar-10-binary.tar.gz
    norb/          norb-5x46789x9x18x6x2x108x108-training-{01..10}-{dat,cat}.mat,
                   norb-5x01235x9x18x6x2x108x108-testing-{01,02}-{dat,cat}.mat
    small_norb/    smallnorb-5x{46789,01235}x9x18x6x2x96x96-{training,testing}-{dat,cat}.mat
    backgrounds/   *.png                                      photographs for the bg-rot stand-in

Texts are loaded by `load_corpus`, see `torchldr_paper.data.text`:

    wikitext-2/    {train,valid,test}.txt                     or wiki.{train,valid,test}.tokens
"""

from .dataset import DataFileError, Dataset, DatasetNotFoundError, DownloadError, as_pixels, standardize
from .download import fetch
from .loading import DatasetStatus, load, status, table
from .places import search_path, user_cache
from .registry import names
from .text import Corpus, load_corpus
from .user import load_npz

__all__ = [
    "Corpus",
    "DataFileError",
    "Dataset",
    "DatasetNotFoundError",
    "DatasetStatus",
    "DownloadError",
    "as_pixels",
    "fetch",
    "load",
    "load_corpus",
    "load_npz",
    "names",
    "search_path",
    "standardize",
    "status",
    "table",
    "user_cache",
]
