"""A word's portrait becomes a page; several portraits become an overview with links.

In: `WordPortrait` values. Out: HTML. Not this module's job: finding the word in images.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bm25v import images
from bm25v.display import percent
from bm25v.errors import ImageError
from bm25v.explanations.crops import Grid, Pixels, crop_word, encode_highlight, encode_jpeg
from bm25v.explanations.word_portrait import RelatedWord, WordInImage, WordPortrait
from bm25v.pages import commands
from bm25v.pages.charts import draw_position_map, draw_tf_histogram
from bm25v.pages.render import EmbeddedImage, render

_CROP_SIDE, _MAP_SIDE, _CHIP_SIDE = 240, 260, 112  # pixels
_DECODED_SIDE = 512  # pixels of the short side
_MAX_FOLDERS = 8
_OVERVIEW_CROPS = 7


def render_word(
    portrait: WordPortrait, *, links: Mapping[int, str] | None = None, home: str = ""
) -> str:
    """Return the page of one word; `links` has the pages of other words, `home` the overview."""
    uses, links = portrait.uses, links or {}
    word = uses.facts
    visible = [image for image in portrait.top if image.grid is not None]
    return render(
        "word.html",
        word=word,
        home=home,
        n_images=uses.n,
        only_folder=uses.folders[0].name if len(uses.folders) == 1 else None,
        main_folders=[f for f in uses.folders if f.lift > 1][:3],
        name_command=commands.name_command(portrait.gallery, word.word),
        hero=[_make_crop(image, word.label) for image in visible],
        facts=list(_facts(portrait)),
        groups=_image_groups(portrait),
        tf_chart=draw_tf_histogram(portrait.tf_bins),
        n_averaged=portrait.n_averaged,
        position_map=draw_position_map(portrait.mean_grid),
        folders=uses.folders[:_MAX_FOLDERS],
        n_more_folders=len(uses.folders) - _MAX_FOLDERS,
        related=[
            {
                "title": "Often together with",
                "about": "Words that share more images with it than chance would give",
                "words": _describe_related(portrait.companions, links, "{:.1f} × chance"),
            },
            {
                "title": "Similar words",
                "about": "Words of this gallery with the most similar directions",
                "words": _describe_related(portrait.neighbours, links, "cosine {:.2f}"),
            },
        ],
    )


def render_words_overview(
    title: str, portraits: Iterable[WordPortrait], links: Mapping[int, str]
) -> str:
    """Return a page that links to the pages of several words."""
    words = [
        {
            "label": portrait.uses.facts.label,
            "link": links[portrait.uses.facts.word],
            "df": portrait.uses.facts.df,
            "idf": portrait.uses.facts.idf,
            "n_images": portrait.uses.n,
            "crops": [
                _make_crop(image, portrait.uses.facts.label)
                for image in portrait.top[:_OVERVIEW_CROPS]
            ],
        }
        for portrait in portraits
    ]
    return render("words_overview.html", title=title, words=words)


def _facts(portrait: WordPortrait) -> Iterator[tuple[str, str]]:
    uses = portrait.uses
    yield f"{uses.facts.df:,}", "images have it"
    yield percent(uses.facts.df / max(uses.n, 1)), "of the gallery"
    yield f"{uses.facts.idf:.2f}", "IDF"
    if uses.folders:
        first = uses.folders[0]
        yield f"{first.lift:.1f} ×", f"as frequent in {first.name} as in all images"


def _image_groups(portrait: WordPortrait) -> list[dict[str, object]]:
    label = portrait.uses.facts.label

    def group(
        title: str, about: str, shown: Sequence[WordInImage], *, has_crops: bool = True
    ) -> dict[str, object]:
        return {
            "title": title,
            "about": about,
            "images": [_describe_image(image, label, has_crops=has_crops) for image in shown],
        }

    return [
        group("Where it is", "The images with most of it", portrait.top, has_crops=False),
        group("Medium", "Images with neither much nor little of it", portrait.middle),
        group("Random", "Any images that have it", portrait.random),
    ]


def _describe_image(image: WordInImage, label: str, *, has_crops: bool) -> dict[str, object]:
    path = Path(image.path)
    return {
        "path": image.path,
        "name": path.name,
        "folder": path.parent.name,
        "tf": image.tf,
        "crop": _make_crop(image, label) if has_crops else None,
        "highlight": _make_highlight(image, label),
    }


def _describe_related(
    related: Sequence[RelatedWord], links: Mapping[int, str], form: str
) -> list[dict[str, object]]:
    return [
        {
            "label": word.facts.label,
            "df": word.facts.df,
            "value": form.format(word.value),
            "link": links.get(word.facts.word),
            "crop": _make_crop(word.best, word.facts.label, _CHIP_SIDE),
        }
        for word in related
    ]


def _make_crop(image: WordInImage, label: str, side: int = _CROP_SIDE) -> EmbeddedImage:
    """Return the part of an image that has most of a word."""
    name = Path(image.path).name
    try:
        pixels, grid = _read(image, _DECODED_SIDE)
    except ImageError as error:
        return EmbeddedImage(None, name, str(error))
    part = images.resize_image(crop_word(pixels, grid), width=side, height=side)
    return EmbeddedImage(encode_jpeg(part), f"{label} in {name}")


def _make_highlight(image: WordInImage, label: str) -> EmbeddedImage:
    name = Path(image.path).name
    try:
        pixels, grid = _read(image, _MAP_SIDE)
    except ImageError as error:
        return EmbeddedImage(None, name, str(error))
    return EmbeddedImage(
        encode_highlight(pixels, grid, side=_MAP_SIDE), f"Where {label} is in {name}"
    )


def _read(image: WordInImage, short_side: int) -> tuple[Pixels, Grid]:
    if image.grid is None:
        raise ImageError(image.problem or "cannot be shown")
    return images.decode_image(image.path, short_side=short_side), image.grid
