"""Sparse auto-encoders: `model` encodes patches, `formats` reads those of other projects."""
