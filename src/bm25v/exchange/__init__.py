"""Bags as Parquet files, which other programs read and write."""
