"""`bm25v info`."""

from pathlib import Path

import click

from bm25v.cli.options import gallery_option, json_option, print_json


@click.command("info")
@gallery_option
@json_option
def command(gallery_path: Path, as_json: bool) -> None:
    """Show a gallery's facts."""
    from bm25v.api import Gallery

    with Gallery.open(gallery_path) as gallery:
        info = gallery.info()
    if as_json:
        print_json(info.to_dict())
        return
    sizes = (
        f"{info.bag_bytes_per_picture:,.0f} bags, {info.dense_bytes_per_picture:,.0f} dense, "
        f"{info.catalog_bytes_per_picture:,.0f} catalogue"
    )
    removed = f" ({info.removed_rows:,} removed)" if info.removed_rows else ""
    facts = {
        "gallery": info.path,
        "pictures": f"{info.pictures:,}{removed}",
        "vocabulary": f"{info.vocabulary} ({info.vocabulary_fingerprint})",
        "backbone": info.backbone,
        "words in use": f"{info.words_in_use:,} of {info.words:,}",
        "average length": f"{info.average_length:.1f}",
        "bytes a picture": sizes,
    }
    for name, value in facts.items():
        click.echo(f"{name:<16} {value}")
