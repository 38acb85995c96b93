"""A folder on disk that holds an indexed collection: storage only. ARCHITECTURE.md lists its files.

`database` is a connection, `catalog` names the images and is the commit, `rows` holds bags and
dense vectors, `writer` writes both in the right order, `snapshot` is what a reader sees, `indexing`
brings files into a gallery, `names` are those of words and images, `store` is an open gallery.
"""
