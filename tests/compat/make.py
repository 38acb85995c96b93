"""Write the golden gallery and vocabulary of the current format; run this once per format.

python -m tests.compat.make
"""

import json
from pathlib import Path

from bm25v.gallery import Gallery
from bm25v.search import Mode
from bm25v.store.files import FileState
from bm25v.store.local import catalog
from bm25v.store.local.writer import Writer
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.folder import FORMAT
from tests.conftest import make_pixels

HERE = Path(__file__).parent
SUFFIXES: dict[str, Mode] = {".json": "sparse", "-words.json": "words"}  # files with hits, by mode


def main() -> None:
    """Write `vocabulary-N` and `gallery-N` beside this file, and the expected hits of searches.

    The gallery was compacted once, and an image was removed since.
    """
    vocabulary = Vocabulary.load("toy")
    if not (HERE / f"vocabulary-{FORMAT}").exists():
        vocabulary.save(HERE / f"vocabulary-{FORMAT}")
    path = HERE / f"gallery-{catalog.FORMAT}"
    with Gallery.create(path, vocabulary="toy") as gallery:
        with Writer(path) as writer:
            for seed in (99, *range(5)):
                encoding = vocabulary.encode(make_pixels(seed))
                file = FileState(f"/photos/{seed}.png", bytes([seed] * 16), 1000 + seed, seed)
                writer.put(file, encoding)
            writer.commit()
        gallery.remove("/photos/99.png")
        gallery.compact()
        gallery.remove("/photos/3.png")
        for suffix, mode in SUFFIXES.items():
            hits = [
                {
                    "path": hit.path,
                    "sparse": hit.sparse,
                    "words": [{"word": word.word} for word in hit.words],
                }
                for hit in gallery.search(make_pixels(1), mode=mode)
            ]
            (HERE / f"{path.name}{suffix}").write_text(json.dumps(hits) + "\n")
    with Writer(path):
        pass  # the last connection empties and deletes the catalogue's log
    (path / "writer.lock").unlink()


if __name__ == "__main__":
    main()
