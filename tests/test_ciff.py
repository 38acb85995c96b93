"""The Common Index File Format: Google's own reader of protocol buffers reads the postings back."""

from collections import defaultdict
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto
from hypothesis import given
from hypothesis import strategies as st

from bm25v.api import Gallery
from bm25v.exchange.ciff import format_postings
from bm25v.index.bm25 import WeightedWords, reference_search
from bm25v.vocabulary.bag import Bag
from tests import test_cli
from tests.conftest import make_image, make_pixels
from tests.test_cli import Run

run = test_cli.run

# The messages of github.com/osirrc/ciff: name, number and type of each field.
MESSAGES = {
    "Header": [
        ("version", 1, "int32"),
        ("num_postings_lists", 2, "int32"),
        ("num_docs", 3, "int32"),
        ("total_postings_lists", 4, "int32"),
        ("total_docs", 5, "int32"),
        ("total_terms_in_collection", 6, "int64"),
        ("average_doclength", 7, "double"),
        ("description", 8, "string"),
    ],
    "Posting": [("docid", 1, "int32"), ("tf", 2, "int32")],
    "PostingsList": [
        ("term", 1, "string"),
        ("df", 2, "int64"),
        ("cf", 3, "int64"),
        ("postings", 4, "Posting"),
    ],
    "DocRecord": [
        ("docid", 1, "int32"),
        ("collection_docid", 2, "string"),
        ("doclength", 3, "int32"),
    ],
}


def make_messages() -> dict[str, Any]:
    """Return a class for each message, as protoc would generate it."""
    file = descriptor_pb2.FileDescriptorProto(name="ciff.proto", package="ciff", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            is_message = kind in MESSAGES
            message.field.add(
                name=field,
                number=number,
                label=kinds.LABEL_REPEATED if is_message else kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_MESSAGE if is_message else getattr(kinds, f"TYPE_{kind.upper()}"),
                type_name=f".ciff.{kind}" if is_message else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = pool.FindFileByName("ciff.proto").message_types_by_name
    return {name: message_factory.GetMessageClass(types[name]) for name in MESSAGES}


CLASSES = make_messages()


class Index:
    """A file in CIFF, read by the package protobuf."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.header = proto.parse_length_prefixed(CLASSES["Header"], file)
            self.lists = [
                proto.parse_length_prefixed(CLASSES["PostingsList"], file)
                for _ in range(self.header.num_postings_lists)
            ]
            self.documents = [
                proto.parse_length_prefixed(CLASSES["DocRecord"], file)
                for _ in range(self.header.num_docs)
            ]
            assert file.read() == b""
        self.postings: dict[int, dict[int, int]] = {}
        for postings in self.lists:
            numbers = np.cumsum([posting.docid for posting in postings.postings])
            tf = [posting.tf for posting in postings.postings]
            self.postings[int(postings.term)] = dict(zip(numbers.tolist(), tf, strict=True))

    def bags(self) -> list[Bag]:
        """Return the bags that the postings are an index of."""
        words: dict[int, dict[int, int]] = defaultdict(dict)
        for word, postings in sorted(self.postings.items()):
            for document, tf in postings.items():
                words[document][word] = tf
        return [
            Bag(np.array([*words[d]], np.int32), np.array([*words[d].values()], np.uint16))
            for d in range(len(self.documents))
        ]

    def search(self, words: list[int], k1: float, b: float) -> dict[int, float]:
        """Return the BM25 scores of documents, as an engine computes them from this file alone."""
        header, scores = self.header, dict[int, float]()
        for word in words:
            postings = self.postings.get(word, {})
            idf = log(1 + (header.total_docs - len(postings) + 0.5) / (len(postings) + 0.5))
            for document, tf in postings.items():
                length = self.documents[document].doclength / header.average_doclength
                value = idf * tf / (tf + k1 * (1 - b + b * length))
                scores[document] = scores.get(document, 0.0) + value
        return scores


@pytest.fixture
def index(run: Run, photos: Path, tmp_path: Path) -> Index:
    """The index of a gallery with removed images, a gap in its rows and a name that is not text."""
    make_image(51).save(photos / "caf\udce9.png")
    with Gallery.create("g", vocabulary="toy", k1=1.2, b=0.6) as gallery:
        gallery.add(photos)
        gallery.remove([photos / "5.png", photos / "0.png"])
    assert run("export", "-g", "g", "--format", "ciff", "-o", "index.ciff").code == 0
    return Index(tmp_path / "index.ciff")


def test_the_header_and_the_records_count_what_follows(index: Index) -> None:
    header = index.header
    assert (header.version, header.num_docs, header.total_docs) == (1, 11, 11)
    assert header.num_postings_lists == header.total_postings_lists == len(index.postings)
    lengths = [document.doclength for document in index.documents]
    assert header.total_terms_in_collection == sum(lengths)
    assert header.average_doclength == pytest.approx(np.mean(lengths))
    assert "k1 = 120 and b = 0.6" in header.description
    terms = [postings.term for postings in index.lists]
    assert terms == sorted(terms)
    for postings in index.lists:
        assert postings.df == len(postings.postings)
        assert postings.cf == sum(posting.tf for posting in postings.postings)
    assert [document.docid for document in index.documents] == list(range(11))


def test_bm25_over_the_postings_is_the_search_of_the_gallery(index: Index) -> None:
    with Gallery.open("g") as gallery:
        paths = [image.path for image in gallery]
        names = [document.collection_docid for document in index.documents]
        assert names == [path.encode(errors="replace").decode() for path in paths]
        for seed in (0, 3, 51, 200):
            query = WeightedWords.from_bag(gallery.vocabulary.bag(make_pixels(seed)))
            results = gallery.search(make_pixels(seed), mode="sparse", k=11, include_query=True)
            hits = [(paths.index(hit.path), hit.score) for hit in results]
            parameters = gallery.store.catalog.meta.parameters
            assert hits == reference_search(index.bags(), query, 11, parameters)  # every bit
            scores = index.search(query.words.tolist(), k1=120, b=0.6)
            for document, score in hits:
                assert scores[document] * (1.2 + 1) == pytest.approx(score, rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(1, 65535)), min_size=1))
def test_postings_are_read_by_others(postings: list[tuple[int, int]]) -> None:
    gaps, tf = np.array(postings).T
    read = CLASSES["PostingsList"].FromString(format_postings(gaps, tf))
    assert [(posting.docid, posting.tf) for posting in read.postings] == postings


def test_an_empty_gallery_is_a_valid_index(run: Run, tmp_path: Path) -> None:
    with Gallery.create("empty", vocabulary="toy"):
        assert run("export", "-g", "empty", "--format", "ciff", "-o", "new/i.ciff").code == 0
    index = Index(tmp_path / "new" / "i.ciff")
    assert (index.header.num_docs, index.postings, index.documents) == (0, {}, [])
