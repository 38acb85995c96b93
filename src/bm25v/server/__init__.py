"""The HTTP API of a gallery, and its web page; it needs the extra `[serve]`.

`app` puts it together: `guard` lets requests in, `images`, `searches`, `words` and `changes` have
the routes, which work with a `service`; `responses` and `problems` write what is sent. `run` starts
it.
"""
