"""Images in, bags of visual words out.

`vocabulary` holds `Vocabulary`: a backbone, a sparse auto-encoder and the settings of a bag, in one
folder. `bag` pools the codes of patches into a `Bag`. `names` reads and writes the names of words.
`shipped/` holds the vocabularies that come with the package. Not this package's job: storing
images, scoring them, training.
"""

from bm25v.vocabulary.bag import Bag
from bm25v.vocabulary.vocabulary import DEFAULT, Encoding, Vocabulary

__all__ = ["DEFAULT", "Bag", "Encoding", "Vocabulary"]
