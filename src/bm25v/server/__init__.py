"""The HTTP API of a gallery: requests in, JSON and images out.

`app` puts it together, `access` and `guard` decide which requests are let in, `bodies` reads them,
`images`, `searches`, `words` and `changes` have the routes, `problems` turns errors into responses,
`run` starts and stops it. It needs the extra `[serve]`. Not this package's job: any logic of its
own; a route calls a gallery or a collection of an engine as a Python program would.
"""
