"""The HTTP API of a gallery, and its web page; it needs the extra `[serve]`.

`app` puts it together: `guard` and `access` let requests in, `bodies` reads them, `images`,
`searches`, `words` and `changes` have the routes, `responses` and `problems` write what is sent.
`run` starts it.
"""
