"""A folder on disk that holds an indexed collection: storage only.

```
gallery.bm25v/
  catalog.sqlite   images: path, content hash, size, time, row, checksum, live; changes; facts
  bags.rows        64-byte header; per row k_post words (uint16) and k_post tf (uint16)
  dense.rows       64-byte header; per row a float16 vector
  full.rows        64-byte header; per row k_full words, levels of their tf, and their patches
  writer.lock      held by the one process that writes
  names.tsv        names that people gave to words; names.lock while one is changed
  images.tsv       names that people gave to images, by the hashes of their files
  automatic.tsv    names that indexing gave to words
```

`database` is a connection, `catalog` names the images and is the commit, `rows` holds bags and
dense vectors, `writer` writes both in the right order, `snapshot` is what a reader sees, `indexing`
brings files into a gallery, `store` is an open gallery.
"""
