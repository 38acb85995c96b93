"""Times the parts of the product on this machine.

In: real pictures, or synthetic ones by the million. Out: seconds, and ratios within one run, which
are what to trust on a machine that does other things too. Not this room's job: retrieval quality.
"""
