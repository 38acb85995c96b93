"""Finds image files under a folder: not what is hidden, trash, or made by programs from others."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from bm25v.display import printable
from bm25v.errors import ImageError, InvalidOption
from bm25v.images.formats import HEAD_SIZE, SUFFIXES, is_image
from bm25v.images.streams import open_nonblocking, system_reason

_GALLERY_FILE = "catalog.sqlite"  # every gallery has it, under this name
HIDDEN = "hidden"
_TRASH = {"#recycle", "@recycle", "$recycle.bin"}  # of Synology, QNAP and Windows
_TRASH_STARTS = (".trash", ".bm25v-trash")  # of Android, macOS and Linux; and that of `bm25v serve`
_THUMBNAILS = {"thumbs.db", "@eadir"}  # of Windows and Synology
_PREVIEWS = ".lrdata"  # a folder of Lightroom
_LIBRARIES = (  # of Apple
    ".photoslibrary",
    ".photolibrary",
    ".migratedphotolibrary",
    ".aplibrary",
    "iphoto library",
)
_ORIGINALS = {"originals", "masters"}  # in such a library; other folders have versions of them
_SIDECARS = {".xmp", ".aae", ".thm", ".pp3", ".dop"}  # what programs note about an image
_RAW: frozenset[str] = frozenset(  # of cameras; Pillow finds a small preview in one, or nothing
    {".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".fff", ".gpr", ".iiq"}
    | {".kdc", ".mef", ".mos", ".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2"}
    | {".rwl", ".sr2", ".srf", ".srw", ".x3f"}
)


def find_images(
    folder: str | os.PathLike[str],
    *,
    exclude: Iterable[str] = (),
    on_error: Callable[[Path, ImageError], None] | None = None,
    on_skip: Callable[[Path, str], None] | None = None,
) -> Iterator[Path]:
    """Yield every image file under a folder, sorted; skip what is hidden, and galleries.

    A file is an image by its name or by its content, also if its format cannot be decoded. Links
    are followed last, and each folder is visited once. Files and folders below `folder` that cannot
    be read are passed to `on_error` and skipped; `folder` itself must be readable. What matches a
    pattern of `exclude` (`matches_pattern`) is left out. `on_skip` gets what else is skipped, and
    why: "trash", "derivatives", "sidecars", or the suffix of a RAW file.
    """
    report = on_error or (lambda path, error: None)
    skip = on_skip or (lambda path, reason: None)
    root = Path(folder)
    excluded = _compile(tuple(exclude))
    visited: set[tuple[int, int]] = set()
    waiting, links = [root], deque[Path]()
    while waiting or links:
        current = waiting.pop() if waiting else links.popleft()
        try:
            status = current.stat()
            if (status.st_dev, status.st_ino) in visited:
                continue
            visited.add((status.st_dev, status.st_ino))
            entries = _list_folder(current)
        except (OSError, ValueError) as error:
            if current is root:
                name = printable(os.fspath(folder))
                raise ImageError(f"{name}: {system_reason(error)}") from error
            report(current, ImageError(system_reason(error)))
            continue
        folders: list[Path] = []
        in_library = _is_library(current, entries)
        for entry in entries:
            path = current / entry.name
            has_suffix = path.suffix.lower() in SUFFIXES
            try:
                relative = path.relative_to(root).as_posix() + "/" * entry.is_dir()
                reason = why_skipped(entry.name, is_folder=entry.is_dir(), in_library=in_library)
                if excluded.fullmatch(relative) or reason == HIDDEN:
                    continue
                if reason is not None:
                    skip(path, reason)
                    continue
                if entry.is_dir():
                    (links if entry.is_symlink() else folders).append(path)
                elif entry.is_file():
                    if has_suffix or _has_image_content(path):
                        yield path
                elif has_suffix and not path.exists():
                    report(path, ImageError("is a broken link: its target does not exist"))
            except OSError as error:
                report(path, ImageError(system_reason(error)))
        waiting += reversed(folders)


def why_skipped(name: str, *, is_folder: bool, in_library: bool = False) -> str | None:
    """Return why a file or folder is skipped unless somebody gives it by its path; else None.

    >>> [why_skipped(name, is_folder=False) for name in ("._a.jpg", "A.XMP", "a.NEF", "a.jpg")]
    ['sidecars', 'sidecars', '.nef', None]
    """
    name = name.lower()
    suffix = os.path.splitext(name)[1]
    if name in _TRASH or name.startswith(_TRASH_STARTS):
        return "trash"
    if name.startswith("._") or (suffix in _SIDECARS and not is_folder):  # AppleDouble files
        return "sidecars"
    if name.startswith("."):
        return HIDDEN
    is_previews = is_folder and suffix == _PREVIEWS
    if name in _THUMBNAILS or is_previews or (in_library and name not in _ORIGINALS):
        return "derivatives"
    return suffix if suffix in _RAW and not is_folder else None


def matches_pattern(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a path, relative to the folder that is searched, matches a pattern.

    A pattern without a slash matches the name of a file or folder anywhere; with a slash it is a
    path from the folder that is searched. What is in a folder that matches, matches too. `*` stands
    for any characters of one name, `**` for any folders, `?` for one character. A slash at the end
    is for folders only, also at the end of a path.

    >>> path = "2023/raw/cat.png"
    >>> matches_pattern(path, ("raw",)), matches_pattern(path, ("/raw",))
    (True, False)
    >>> matches_pattern(path, ("*.png",)), matches_pattern(path, ("2023/**/c?t.*",))
    (True, True)
    """
    return _compile(patterns).fullmatch(path) is not None


@lru_cache(maxsize=64)
def _compile(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_translate, patterns)) if patterns else r"(?!)", re.DOTALL)


def _translate(pattern: str) -> str:
    """Return the regular expression of a pattern.

    After a wildcard, the first match of what follows is as good as any later one. So each is an
    atomic group: a pattern of strangers with many wildcards does not take time without end.
    """
    names = [name for name in pattern.removeprefix("./").split("/") if name]
    if not names:
        raise InvalidOption(f"{pattern!r} is an empty pattern: give a name such as *.png or raw")
    is_path = "/" in pattern.rstrip("/")
    first, *others = _split_at_folders(names if is_path else ["**", *names])
    body = "/".join(map(_translate_name, first))
    for part in others:
        name = "/".join(map(_translate_name, part))
        body += ("/" if body else "") + (f"(?>(?:[^/]*/)*?{name})" if part else ".*")
    return body + ("/.*" if pattern.endswith("/") else "(?:/.*)?")


def _split_at_folders(names: list[str]) -> list[list[str]]:
    """Split names where `**` stands for any folders; `**.png` is `**/*.png`, `a**/` is `a*/**/`."""
    parts: list[list[str]] = [[]]
    for position, name in enumerate(names, start=1):
        plain = name.strip("*")
        if name.startswith("**") and (parts[-1] or len(parts) == 1):
            parts.append([])
        if plain or not name.startswith("**"):
            parts[-1].append(name)
        if plain and name.endswith("**") and position < len(names):
            parts.append([])
    return parts


def _translate_name(name: str) -> str:
    first, *others = (
        "".join("[^/]" if letter == "?" else re.escape(letter) for letter in plain)
        for plain in re.split(r"\*+", name)
    )
    if not others:
        return f"{first}(?=/|\\Z)"
    *middle, last = others
    starts = "".join(f"(?>[^/]*?{plain})" for plain in middle)
    return f"{first}{starts}(?>[^/]*{last}(?=/|\\Z))"


def _list_folder(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is directly in a folder, sorted by name; nothing if it is a gallery."""
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    if any(entry.name == _GALLERY_FILE for entry in entries):
        return []
    return entries


def _is_library(folder: Path, entries: list[os.DirEntry[str]]) -> bool:
    name = folder.absolute().name.lower()
    return name.endswith(_LIBRARIES) and any(e.name.lower() in _ORIGINALS for e in entries)


def _has_image_content(path: Path) -> bool:
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            return is_image(file.read(HEAD_SIZE))
    except OSError:
        return False
