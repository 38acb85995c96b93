"""CUB-200-2011: 200 species of birds."""

from bm25v.research.datasets.dataset import Item
from bm25v.research.datasets.published import Parts, Source, Tree


def _read(tree: Tree) -> Parts:
    classes, parts = tree.pairs("classes.txt"), tree.pairs("train_test_split.txt")
    labels = tree.pairs("image_class_labels.txt")
    found: dict[str, list[Item]] = {"1": [], "0": []}
    for number, path in tree.pairs("images.txt").items():
        part = tree.look_up(parts, number, "train_test_split.txt")
        label = tree.look_up(labels, number, "image_class_labels.txt")
        if part not in found:
            tree.refuse(f"train_test_split.txt says {part!r} of {number}, not 0 or 1")
        name = tree.look_up(classes, label, "classes.txt")
        found[part].append(Item(tree.root / "images" / path, name))
    return Parts("gallery: train, queries: test", found["1"], found["0"])


BIRDS = Source(
    title="CUB-200-2011",
    folder="CUB_200_2011",
    layout="images.txt, train_test_split.txt, image_class_labels.txt, classes.txt and images/",
    home="the Caltech vision group's page of CUB-200-2011 (vision.caltech.edu)",
    read=_read,
)
