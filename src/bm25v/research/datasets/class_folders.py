"""Folders of class folders: the user's own images, and ImageNet."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from bm25v import images
from bm25v.research.datasets.dataset import Item, summarize_problem
from bm25v.research.datasets.layout import DatasetFolder, DatasetLayout, DatasetParts

_PARTS = ("gallery", "query")


def read_split(folder: DatasetFolder, split: Path) -> DatasetParts:
    """Read class folders by a file of lines "path<TAB>gallery|query"."""
    part_of_path: dict[PurePosixPath, str] = {}
    repeated, outside = [], []
    for path, part in _split_lines(folder, split):
        if len(path.parts) < 2:
            outside.append(str(path))
        elif path in part_of_path:
            repeated.append(str(path))
        else:
            part_of_path[path] = part
    gallery, queries = (
        [Item(folder.root / path, path.parts[0]) for path, p in part_of_path.items() if p == part]
        for part in _PARTS
    )
    present, notes = _find_items(folder.root)
    listed = {folder.root / path for path in part_of_path}
    unlisted = [
        str(item.path.relative_to(folder.root)) for item in present if item.path not in listed
    ]
    notes += summarize_problem("in the split but in no class folder", outside)
    notes += summarize_problem("repeated in the split, only the first line counts", repeated)
    notes += summarize_problem("not in the split", unlisted)
    return DatasetParts(f"by {split.name}", gallery, queries, notes=notes)


def _split_lines(folder: DatasetFolder, split: Path) -> Iterator[tuple[PurePosixPath, str]]:
    try:
        text = split.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        folder.fail(f"the split {split} cannot be read: {error.strerror}")
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        name, _, part = line.rstrip("\r").rpartition("\t")
        path = PurePosixPath(name)
        if part not in _PARTS or path.is_absolute() or ".." in path.parts:
            folder.fail(
                f"line {number} of {split} is {line!r}, but must be a path inside the folder, a "
                "tab, and gallery or query"
            )
        yield path, part


def _read_folder(folder: DatasetFolder) -> DatasetParts:
    train, test = folder.root / "train", folder.root / "test"
    if not (_has_folders(train) and _has_folders(test)):
        items, notes = _find_items(folder.root)
        return DatasetParts("leave-one-out", items, items, leave_one_out=True, notes=notes)
    gallery, gallery_notes = _find_items(train)
    queries, query_notes = _find_items(test)
    others = sorted(
        path.name for path in folder.root.iterdir() if path.is_dir() and path not in (train, test)
    )
    unused = summarize_problem("folders besides train and test, not used", others)
    notes = gallery_notes + query_notes + unused
    return DatasetParts("gallery: train, queries: test", gallery, queries, notes=notes)


def _read_imagenet(folder: DatasetFolder) -> DatasetParts:
    if not (folder.root / "train").is_dir():
        folder.fail("train is missing")
    items, notes = _find_items(folder.root / "train")
    return DatasetParts("train, for training only; no queries", items, None, notes=notes)


def _has_folders(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_dir() for path in folder.iterdir())


def _find_items(folder: Path) -> tuple[list[Item], list[str]]:
    """Return the images in class folders, and notes about the rest."""
    items: list[Item] = []
    outside: list[str] = []
    unreadable: list[str] = []
    for path in images.find_images(
        folder, on_error=lambda path, error: unreadable.append(f"{path}: {error}")
    ):
        relative = path.relative_to(folder)
        if len(relative.parts) < 2:
            outside.append(str(relative))
        else:
            items.append(Item(path, relative.parts[0]))
    notes = summarize_problem("cannot be opened", unreadable)
    return items, notes + summarize_problem("in no class folder", outside)


CLASS_FOLDERS = {
    "imagenet": DatasetLayout(
        title="ImageNet",
        folder="imagenet",
        files="train/<class>/ with images",
        homepage="the ImageNet page of ILSVRC 2012 (image-net.org)",
        read=_read_imagenet,
    ),
    "folder": DatasetLayout(
        title="the data set",
        folder="",
        files="class folders with images, or such folders in train/ and test/",
        homepage="",
        read=_read_folder,
    ),
}
