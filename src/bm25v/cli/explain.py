"""`bm25v explain`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import gallery_option, json_option, print_json, shown

if TYPE_CHECKING:
    from bm25v.explain import Explanation


@click.command("explain")
@click.argument("query", type=click.Path())
@click.argument("hit", type=click.Path())
@gallery_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw both pictures with a heat map of each top word, as PNG.",
)
@click.option("--top", default=5, show_default=True, type=click.IntRange(1), help="Words to show.")
@json_option
def command(
    query: str, hit: str, gallery_path: Path, output: Path | None, top: int, as_json: bool
) -> None:
    """Say why HIT, a picture of the gallery, matches QUERY."""
    from bm25v.explain import explain
    from bm25v.gallery import Gallery

    with Gallery.open(gallery_path) as gallery:
        explanation = explain(gallery, query, hit)
    if output is not None:
        from bm25v.explain.drawing import draw

        draw(explanation, top=top, query_name=Path(query).name).save(output, format="PNG")
    if as_json:
        print_json(_to_json(explanation))
        return
    _print(explanation, top)
    if output is not None:
        click.echo(f"drawn: {output}")


def _to_json(explanation: "Explanation") -> dict[str, Any]:
    return {
        "path": explanation.hit_path,
        "sparse": explanation.sparse,
        "dense": explanation.dense,
        "words": [
            {
                **part.word._asdict(),
                "in_query": part.in_query.tolist(),
                "in_hit": part.in_hit.tolist(),
            }
            for part in explanation.parts
        ],
    }


def _print(explanation: "Explanation", top: int) -> None:
    click.echo(shown(explanation.hit_path))
    click.echo(f"cosine {explanation.dense:.3f}, BM25 {explanation.sparse:.2f}, of that:")
    for part in explanation.parts[:top]:
        word = part.word
        click.echo(
            f"{word.contribution:7.2f}  {word.label:<12} idf {word.idf:.2f} × saturation "
            f"{word.saturation:.2f}  (tf {word.tf:.2f} here, {word.query_tf:.2f} in the query)"
        )
    rest = [part.word.contribution for part in explanation.parts[top:]]
    if rest:
        click.echo(f"{sum(rest):7.2f}  {len(rest)} more words")
