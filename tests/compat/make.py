"""Write the golden gallery and vocabulary of the current format; run once a format, then never.

python -m tests.compat.make
"""

import json
from pathlib import Path

import numpy as np

from bm25v.gallery import Gallery, catalog
from bm25v.gallery.writer import FileState, Writer
from bm25v.vocabulary import FORMAT, Vocabulary
from tests.conftest import picture

HERE = Path(__file__).parent


def main() -> None:
    """Write `vocabulary-N` and `gallery-N` beside this file, and what a search must find."""
    vocabulary = Vocabulary.load("toy")
    vocabulary.save(HERE / f"vocabulary-{FORMAT}")
    path = HERE / f"gallery-{catalog.FORMAT}"
    gallery = Gallery.create(path, vocabulary="toy")
    with Writer(path) as writer:
        for seed in range(5):
            encoding = vocabulary.encode(np.asarray(picture(seed)))
            file = FileState(f"/photos/{seed}.png", bytes([seed] * 16), 1000 + seed, seed)
            writer.put(file, encoding.bag, encoding.dense_e)
        writer.remove(3)
        writer.commit()
    hits = gallery.search(np.asarray(picture(1)), mode="sparse").to_json()["hits"]
    gallery.close()
    (path / "writer.lock").unlink(missing_ok=True)
    (HERE / f"gallery-{catalog.FORMAT}.json").write_text(json.dumps(hits, indent=1) + "\n")


if __name__ == "__main__":
    main()
