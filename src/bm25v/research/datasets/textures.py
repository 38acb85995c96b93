"""DTD: 47 kinds of textures."""

from bm25v.research.datasets.dataset import Item
from bm25v.research.datasets.published import Parts, Source, Tree


def _read(tree: Tree) -> Parts:
    # The paper's 1,002 operations a query are 5 · 16² · N / V with V at most 3,240, so N is at most
    # 2,536: train1 has 1,880 pictures, with val1 it would be 3,760.
    return Parts(
        "gallery: train1 (val1 unused), queries: test1",
        _items(tree, "train1"),
        _items(tree, "test1"),
    )


def _items(tree: Tree, part: str) -> list[Item]:
    paths = tree.lines(f"labels/{part}.txt")
    return [Item(tree.root / "images" / path, path.partition("/")[0]) for path in paths]


TEXTURES = Source(
    title="DTD",
    folder="dtd",
    layout="labels/train1.txt, labels/test1.txt and images/<texture>/",
    home="the Oxford VGG page of describable textures (robots.ox.ac.uk/~vgg/data/dtd)",
    read=_read,
)
