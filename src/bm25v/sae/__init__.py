"""Sparse auto-encoders: patch features in, a few active visual words a patch out.

`model` is the encoder that search uses, numpy only. `train` makes new ones and needs torch.
Not this room's job: pictures, bags, files of a vocabulary.
"""
