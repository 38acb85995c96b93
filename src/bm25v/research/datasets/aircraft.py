"""FGVC-Aircraft: 100 variants of aircraft."""

from bm25v.research.datasets.dataset import Item
from bm25v.research.datasets.published import Parts, Source, Tree


def _read(tree: Tree) -> Parts:
    return Parts(
        "gallery: train (val unused), queries: test", _items(tree, "train"), _items(tree, "test")
    )


def _items(tree: Tree, part: str) -> list[Item]:
    images = tree.root / "data" / "images"
    variants = tree.pairs(f"data/images_variant_{part}.txt")
    return [Item(images / f"{name}.jpg", variant) for name, variant in variants.items()]


AIRCRAFT = Source(
    title="FGVC-Aircraft",
    folder="fgvc-aircraft-2013b",
    layout="data/images_variant_train.txt, data/images_variant_test.txt and data/images/",
    home="the Oxford VGG page of FGVC-Aircraft (robots.ox.ac.uk/~vgg/data/fgvc-aircraft)",
    read=_read,
)
