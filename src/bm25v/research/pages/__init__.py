"""Figures in, one HTML page out, which needs no network.

`figures` is all that a page tells, `page` puts it together, `quality` writes of what is found,
`settings` of what changes that, `words` of words and costs; `markup` and `plots` draw. Not this
room's job: measuring.
"""
