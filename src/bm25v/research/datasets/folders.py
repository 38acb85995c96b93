"""Folders of class folders: anybody's own pictures, and ImageNet."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from bm25v import images
from bm25v.research.datasets.dataset import Item, report
from bm25v.research.datasets.published import Parts, Source, Tree

_PARTS = ("gallery", "query")


def read_split(tree: Tree, split: Path) -> Parts:
    """Read class folders by a file with lines "path<TAB>gallery|query", paths as in the folder."""
    parts: dict[PurePosixPath, str] = {}
    repeated, outside = [], []
    for path, part in _split_lines(tree, split):
        if len(path.parts) < 2:
            outside.append(str(path))
        elif path in parts:
            repeated.append(str(path))
        else:
            parts[path] = part
    gallery, queries = (
        [Item(tree.root / path, path.parts[0]) for path, part in parts.items() if part == wanted]
        for wanted in _PARTS
    )
    present, findings = _classes(tree.root)
    named = {tree.root / path for path in parts}
    unnamed = [str(one.path.relative_to(tree.root)) for one in present if one.path not in named]
    findings += report("in the split but in no class folder", outside)
    findings += report("named again in the split, where the first line counts", repeated)
    findings += report("not in the split", unnamed)
    return Parts(f"by {split.name}", gallery, queries, findings=findings)


def _split_lines(tree: Tree, split: Path) -> Iterator[tuple[PurePosixPath, str]]:
    try:
        text = split.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        tree.refuse(f"the split {split} cannot be read: {error.strerror}")
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        name, _, part = line.rstrip("\r").rpartition("\t")
        path = PurePosixPath(name)
        if part not in _PARTS or path.is_absolute() or ".." in path.parts:
            tree.refuse(
                f"line {number} of {split} is {line!r}, not a path in the folder, a tab and "
                "gallery or query"
            )
        yield path, part


def _read_folder(tree: Tree) -> Parts:
    train, test = tree.root / "train", tree.root / "test"
    if not (_has_folders(train) and _has_folders(test)):
        items, findings = _classes(tree.root)
        return Parts("leave-one-out", items, items, leave_one_out=True, findings=findings)
    gallery, findings = _classes(train)
    queries, more = _classes(test)
    others = (one.name for one in tree.root.iterdir() if one.is_dir() and one not in (train, test))
    unused = report("folders beside train and test, not used", sorted(others))
    return Parts(
        "gallery: train, queries: test", gallery, queries, findings=findings + more + unused
    )


def _read_imagenet(tree: Tree) -> Parts:
    if not (tree.root / "train").is_dir():
        tree.refuse("train is missing")
    gallery, findings = _classes(tree.root / "train")
    return Parts("train, to learn from; no queries", gallery, None, findings=findings)


def _has_folders(folder: Path) -> bool:
    return folder.is_dir() and any(one.is_dir() for one in folder.iterdir())


def _classes(folder: Path) -> tuple[list[Item], list[str]]:
    """Return the pictures in class folders, and what else there is."""
    items: list[Item] = []
    outside: list[str] = []
    closed: list[str] = []
    for path in images.find_images(
        folder, on_error=lambda path, error: closed.append(f"{path}: {error}")
    ):
        inside = path.relative_to(folder)
        if len(inside.parts) < 2:
            outside.append(str(inside))
        else:
            items.append(Item(path, inside.parts[0]))
    return items, report("cannot be opened", closed) + report("in no class folder", outside)


FOLDER = Source(
    title="the data set",
    folder="",
    layout="class folders with pictures, or such folders in train/ and test/",
    home="",
    read=_read_folder,
)

IMAGENET = Source(
    title="ImageNet",
    folder="imagenet",
    layout="train/<class>/ with pictures",
    home="the ImageNet page of ILSVRC 2012 (image-net.org)",
    read=_read_imagenet,
)
