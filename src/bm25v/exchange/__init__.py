"""Bags as files that other programs read and write: Parquet, and the Common Index File Format.

In: an open gallery, or images. Out: files; and the way back, from Parquet into a gallery. Not this
package's job: searching, and how a gallery stores its rows.
"""
