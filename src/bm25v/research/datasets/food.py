"""Food-101: 101 dishes."""

from bm25v.research.datasets.dataset import Item
from bm25v.research.datasets.published import Parts, Source, Tree


def _read(tree: Tree) -> Parts:
    return Parts("gallery: train, queries: test", _items(tree, "train"), _items(tree, "test"))


def _items(tree: Tree, part: str) -> list[Item]:
    paths = tree.lines(f"meta/{part}.txt")
    return [Item(tree.root / "images" / f"{path}.jpg", path.partition("/")[0]) for path in paths]


FOOD = Source(
    title="Food-101",
    folder="food-101",
    layout="meta/train.txt, meta/test.txt and images/<dish>/",
    home="the ETH computer vision lab's page of Food-101 (data.vision.ee.ethz.ch)",
    read=_read,
)
