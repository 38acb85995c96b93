"""Writers that are killed, and readers that check every answer.

`history` says what the gallery contains after each step, `writer` writes it, `reader` searches and
compares with `answers`, `journal` tells all of them how far the writer is, `run` starts and kills.
"""
