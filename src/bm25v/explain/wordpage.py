"""One word of a gallery as a page of HTML that needs nothing beside it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bm25v import images
from bm25v.errors import ImageError
from bm25v.explain import charts, crops
from bm25v.explain.charts import percent
from bm25v.explain.markup import SCALE, bar, document, facts, picture, text
from bm25v.explain.word_portrait import RelatedWord, WordInImage, WordPortrait

_CROP, _HEAT_MAP, _CHIP = 240, 260, 112  # pixels a side
_DECODED = 512  # pixels of the short side
_FOLDERS = 8
_STYLES = ("words.css", "wordpage.css")
_WHERE = f"The pictures with most of it {SCALE}"
_FOOTER = """<footer>
<h2>How to read this page</h2>
<p>A picture has a word if it is one of its strongest. How much of a word it has is its <b>term
frequency</b> (tf): how active the word is, summed over the picture. The fewer pictures have a
word, the higher its <b>IDF</b>, and the more it counts in a search. <b>Times chance</b> compares
how often two words share a picture with how often they would if they had nothing to do with each
other. <b>Directions</b> are those of the auto-encoder's decoder: where two are alike, the words
stand for similar patches.</p>
<p>A picture glows where the word is active <span class="glow" aria-hidden="true"></span> from
faint to its strongest place in that picture; grey is where the word is not.</p>
</footer>"""


def page(portrait: WordPortrait, *, links: Mapping[int, str] | None = None, home: str = "") -> str:
    """Return the page of one word; `links` says where other words have theirs."""
    uses, links = portrait.uses, links or {}
    word = uses.facts
    kind = f"Visual word {word.word}" if word.name else "Visual word"
    back = f' · <a href="{text(home)}">all words here</a>' if home else ""
    visible = (sight for sight in portrait.top if sight.grid is not None)
    hero = "".join(f"<li>{_crop(sight, word.label)}</li>" for sight in visible)
    body = f"""<header>
<small>{kind}{back}</small>
<h1>{text(word.label)}</h1>
<p class="lead">{_lead(portrait)}</p>
<ol class="hero">{hero}</ol>
{facts("facts", _headlines(portrait))}
</header>
<main>
{_pictures("Where it is", _WHERE, portrait.top, word.label, False)}
<section class="charts">
<div><h2>How much of it</h2><p>Pictures by their term frequency</p>
{charts.spread(portrait.tf_bins)}</div>
<div><h2>Its place</h2>{_place(portrait)}</div>
{_folders(portrait)}
</section>
{
        _pictures(
            "In the middle",
            "Pictures with neither much nor little of it",
            portrait.middle,
            word.label,
            True,
        )
    }
{_pictures("At random", "Any pictures that have it", portrait.random, word.label, True)}
{
        _relatives(
            "Comes together with",
            portrait.companions,
            links,
            "{:.1f} × chance",
            "Words that are in the same pictures more often than chance would have it",
        )
    }
{
        _relatives(
            "Points the same way as",
            portrait.neighbours,
            links,
            "cosine {:.2f}",
            "Words of this gallery whose directions are most like its own",
        )
    }
</main>
{_FOOTER}"""
    return document(word.label, body, styles=_STYLES)


def overview(
    title: str, portraits: Iterable[WordPortrait], links: Mapping[int, str], *, shown: int = 7
) -> str:
    """Return a page that leads to those of several words."""
    items = []
    for portrait in portraits:
        word, n = portrait.uses.facts, portrait.uses.n
        examples = "".join(f"<li>{_crop(one, word.label)}</li>" for one in portrait.top[:shown])
        items.append(
            f'<li><div><h3><a href="{text(links[word.word])}">{text(word.label)}</a></h3>'
            f"<p><b>{word.df:,}</b> of {n:,} pictures</p><small>IDF {word.idf:.2f}</small></div>"
            f"<ol>{examples}</ol></li>"
        )
    body = f"""<header><small>Gallery</small><h1>{text(title)}</h1>
<p class="lead">Some of its visual words, each with the places where it is strongest.</p></header>
<main><ol class="samples wide">{"".join(items)}</ol></main>"""
    return document(f"Words of {title}", body, styles=_STYLES)


def _lead(portrait: WordPortrait) -> str:
    uses = portrait.uses
    found = f"In {uses.facts.df:,} of {uses.n:,} pictures"
    names = [f"<b>{text(folder.name)}</b>" for folder in uses.folders]
    if not names:
        return f"{found}."
    if len(names) == 1:
        return f"{found}, all in {names[0]}."
    usual = [name for name, one in zip(names, uses.folders, strict=True) if one.has_word > 1]
    first = (usual or names)[:3]
    return f"{found}, most often in {', '.join(first[:-1])}{' and ' * (len(first) > 1)}{first[-1]}."


def _headlines(portrait: WordPortrait) -> Iterable[tuple[str, str]]:
    uses = portrait.uses
    yield f"{uses.facts.df:,}", "pictures have it"
    yield percent(uses.facts.df / max(uses.n, 1)), "of the gallery"
    yield f"{uses.facts.idf:.2f}", "IDF"
    if uses.purity is not None:
        yield percent(uses.purity), f"of them in {uses.folders[0].name}"


def _pictures(
    title: str, about: str, sights: Sequence[WordInImage], label: str, with_crops: bool
) -> str:
    if not sights:
        return ""
    cards = "".join(
        f"<li>{_crop(sight, label) if with_crops else ''}{_heat_map(sight, label)}"
        f'<p class="name" title="{text(sight.path)}">{text(Path(sight.path).name)}</p>'
        f"<small>tf {sight.tf:.2f} · {text(Path(sight.path).parent.name)}</small></li>"
        for sight in sights
    )
    return f'<section><h2>{title}</h2><p>{about}</p><ol class="cards">{cards}</ol></section>'


def _place(portrait: WordPortrait) -> str:
    if not portrait.n_averaged:
        return '<p class="missing">None of its pictures can be read any more.</p>'
    n, is_all = portrait.n_averaged, portrait.n_averaged == portrait.uses.facts.df
    chosen = f"its {n} pictures" if is_all else f"{n} random pictures"
    among = f"Mean of {chosen}" if n > 1 else "One picture"
    return f"<p>{among}, squeezed to a square</p>{charts.place(portrait.mean_grid)}"


def _folders(portrait: WordPortrait) -> str:
    uses = portrait.uses
    if not uses.folders:
        return ""
    most = uses.folders[0].has_word
    rows = "".join(
        f"<li><span>{text(one.name)}</span><b>{one.has_word}</b><small>of {one.pictures}</small>"
        f"{bar(0, one.has_word, most)}</li>"
        for one in uses.folders[:_FOLDERS]
    )
    n_more = len(uses.folders) - _FOLDERS
    more = f"<small>and {n_more} more folders</small>" if n_more > 0 else ""
    return f"""<div><h2>In which folders</h2><p>Pictures with the word, the names of their folders
taken as labels</p><ol class="folders">{rows}</ol>{more}</div>"""


def _relatives(
    title: str, relatives: Sequence[RelatedWord], links: Mapping[int, str], value: str, about: str
) -> str:
    if not relatives:
        return ""
    chips = "".join(_relative(one, links.get(one.facts.word), value) for one in relatives)
    return f'<section><h2>{title}</h2><p>{about}</p><ol class="chips">{chips}</ol></section>'


def _relative(relative: RelatedWord, link: str | None, value: str) -> str:
    word = relative.facts
    inside = (
        f"{_crop(relative.best, word.label, _CHIP)}<div><h3>{text(word.label)}</h3>"
        f"<p>{value.format(relative.value)}</p>"
        f"<small>in {word.df:,} picture{'s' * (word.df != 1)}</small></div>"
    )
    return f'<li><a href="{text(link)}">{inside}</a></li>' if link else f"<li>{inside}</li>"


def _crop(sight: WordInImage, label: str, side: int = _CROP) -> str:
    """Show the part of a picture that has most of a word."""
    seen = _seen(sight, _DECODED)
    if isinstance(seen, str):
        return seen
    pixels, grid = seen
    part = images.resize_image(crops.crop_word(pixels, grid), width=side, height=side)
    return picture(crops.encode_jpeg(part), f"{label} in {Path(sight.path).name}")


def _heat_map(sight: WordInImage, label: str) -> str:
    seen = _seen(sight, _HEAT_MAP)
    if isinstance(seen, str):
        return seen
    heat_map = crops.encode_heat_map(*seen, side=_HEAT_MAP)
    where = f"Where {label} is in {Path(sight.path).name}"
    return f'<div class="frame">{picture(heat_map, where)}</div>'


def _seen(sight: WordInImage, short_side: int) -> tuple[crops.Pixels, crops.Grid] | str:
    """Return a picture and where the word is in it, or what to show instead."""
    problem = sight.problem
    if sight.grid is not None:
        try:
            return images.decode_image(sight.path, short_side=short_side), sight.grid
        except ImageError as error:
            problem = str(error)
    name = text(Path(sight.path).name)
    return f'<div class="frame"><p>{name}: {text(problem or "cannot be shown")}</p></div>'
