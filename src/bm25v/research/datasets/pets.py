"""Oxford-IIIT Pets: 37 breeds of cats and dogs."""

from bm25v.research.datasets.dataset import Item
from bm25v.research.datasets.published import Parts, Source, Tree


def _read(tree: Tree) -> Parts:
    return Parts("gallery: trainval, queries: test", _items(tree, "trainval"), _items(tree, "test"))


def _items(tree: Tree, part: str) -> list[Item]:
    names = [row[0] for row in tree.table(f"annotations/{part}.txt", 4)]
    images = tree.root / "images"
    return [Item(images / f"{name}.jpg", name.rpartition("_")[0]) for name in names]


PETS = Source(
    title="Oxford-IIIT Pets",
    folder="oxford-iiit-pet",
    layout="annotations/trainval.txt, annotations/test.txt and images/",
    home="the Oxford VGG page of the pet dataset (robots.ox.ac.uk/~vgg/data/pets)",
    read=_read,
)
