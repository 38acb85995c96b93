"""Sparse auto-encoders: patch features in, a few active visual words a patch out.

`model` is the encoder that search uses, numpy only. `trainer` makes new ones and needs torch,
`formats` reads those of other tools.
Not this room's job: pictures, bags, files of a vocabulary.
"""
