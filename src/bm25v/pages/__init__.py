"""Values in, self-contained HTML pages out.

Not this package's job: measuring, searching, writing files.
"""
