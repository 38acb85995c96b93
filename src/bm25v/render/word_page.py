"""The page of a word, and an overview of several words with links to their pages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bm25v import images
from bm25v.display import percent
from bm25v.errors import ImageError
from bm25v.explain.explanation import Pixels
from bm25v.explain.groups import Grid
from bm25v.explain.heatmaps import encode_crop, encode_highlight
from bm25v.explain.portraits import RelatedWord, WordInImage, WordPortrait
from bm25v.render import commands
from bm25v.render.html import EmbeddedImage, render

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
    return render(
        "word.html",
        word=word,
        home=home,
        n_images=uses.n,
        only_folder=uses.folders[0].name if len(uses.folders) == 1 else None,
        main_folders=[f for f in uses.folders if f.lift > 1][:3],
        name_command=commands.name_command(portrait.gallery, word.word),
        hero=[_embed_crop(i, word.label) for i in portrait.top if i.grid is not None],
        facts=list(_facts(portrait)),
        groups=_image_groups(portrait),
        tf_bins=portrait.tf_bins,
        n_averaged=portrait.n_averaged,
        mean_grid=portrait.mean_grid.tolist(),
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
    words = [
        {
            "label": portrait.uses.facts.label,
            "link": links[portrait.uses.facts.word],
            "df": portrait.uses.facts.df,
            "idf": portrait.uses.facts.idf,
            "n_images": portrait.uses.n,
            "crops": [
                _embed_crop(image, portrait.uses.facts.label)
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
    encode = partial(encode_highlight, side=_MAP_SIDE)
    return {
        "path": image.path,
        "tf": image.tf,
        "crop": _embed_crop(image, label) if has_crops else None,
        "highlight": _embed(image, _MAP_SIDE, f"Where {label} is in", encode),
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
            "crop": _embed_crop(word.best, word.facts.label, _CHIP_SIDE),
        }
        for word in related
    ]


def _embed_crop(image: WordInImage, label: str, side: int = _CROP_SIDE) -> EmbeddedImage:
    return _embed(image, _DECODED_SIDE, f"{label} in", partial(encode_crop, side=side))


def _embed(
    image: WordInImage, decoded_side: int, about: str, encode: Callable[[Pixels, Grid], bytes]
) -> EmbeddedImage:
    name = Path(image.path).name
    if image.grid is None:
        return EmbeddedImage(None, name, image.problem or "cannot be shown")
    try:
        pixels = images.decode_image(image.path, short_side=decoded_side)
    except ImageError as error:
        return EmbeddedImage(None, name, str(error))
    return EmbeddedImage(encode(pixels, image.grid), f"{about} {name}")
