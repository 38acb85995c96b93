"""`Vocabulary` turns images into bags of visual words; `shipped/` has those of the package."""

from bm25v.vocabulary.bag import Bag
from bm25v.vocabulary.vocabulary import DEFAULT, Encoding, Vocabulary

__all__ = ["DEFAULT", "Bag", "Encoding", "Vocabulary"]
