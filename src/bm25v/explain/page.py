"""An explanation as one page of HTML that stands alone: both pictures, then each word."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bm25v.display import count
from bm25v.errors import WrongUse
from bm25v.explain.explanation import Explanation, Grid, Part, Pixels, combine_maps, percent_of
from bm25v.explain.glowing import heat_map, photo, shape
from bm25v.explain.markup import SCALE, bar, breakable, document, facts, text
from bm25v.gallery import QueryWord
from bm25v.index.bm25 import DEFAULT_PARAMETERS
from bm25v.search.regions import Box

K1, B = DEFAULT_PARAMETERS.k1, DEFAULT_PARAMETERS.b

_HIT = "hit"


def page(
    explanation: Explanation, *, top: int | None = None, query_names: Sequence[str] = ()
) -> str:
    """Return the page; of the words, the `top` ones that give most, or all.

    >>> import numpy as np
    >>> from bm25v.gallery import Match, Word
    >>> pixels, grid = np.zeros((40, 60, 3), np.uint8), np.ones((7, 7), np.float32)
    >>> word = Word(7, "petal", 2.0, 3.0, 4.0, 1.5, 3.0)
    >>> match = Match("rose.jpg", 3.0, 0.9, (word,), 0.4, 3.0, 3.0, 20)
    >>> made = page(Explanation((pixels,), pixels, match, (Part(word, (grid,), grid),)))
    >>> "<h1>rose.jpg</h1>" in made, "petal" in made, "+3.00" in made
    (True, True, True)
    """
    if top is not None and top < 1:
        raise WrongUse(f"top = {top}: show at least 1 word")
    name = Path(explanation.hit_path).name
    sides = {f"q{n}": image for n, image in enumerate(explanation.query_images)}
    if explanation.hit_image is not None:
        sides[_HIT] = explanation.hit_image
    photos = "".join(photo(side, image) for side, image in sides.items())
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    body = f"""<style>{photos}</style>
<header>
<small>Why this picture was found</small>
<h1>{breakable(name)}</h1>
<p class="lead">{_lead(explanation)}</p>
{facts("facts", _facts(explanation))}
{"".join(f'<p class="note">{text(note)}</p>' for note in explanation.notes)}
</header>
<main>
{_stage(explanation, sides, query_names)}
{_words(explanation, sides, top)}
{_missing(explanation.missing)}
</main>
<footer>
<h2>How to read this page</h2>
{_legend(explanation)}
</footer>
<script>
{script}</script>"""
    return document(f"Why {name} was found", body, styles=["report.css", "page.css"])


def _lead(explanation: Explanation) -> str:
    n = sum(part.word.weight > 0 for part in explanation.parts)
    against = len(explanation.parts) - n
    asked = sum(one.weight > 0 for one in explanation.query_words) or n
    if not explanation.parts:
        return f"It has none of the {asked} words asked for: there is nothing to add up."
    but = f", and {against} that speak{'s' * (against == 1)} against it" if against else ""
    found = f"It has {n} of the {count(asked, 'word')} asked for{but}."
    return f"{found} Each gives a part of the score: point at one to see where it is."


def _facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    yield f"{explanation.sparse:.2f}", "BM25 score, the sum of the words"
    yield f"{explanation.match.coverage:.0%}", "coverage of what was asked for, by IDF"
    if explanation.dense is not None:
        yield f"{explanation.dense:.3f}", "cosine, beside the sum"


def _stage(explanation: Explanation, sides: dict[str, Pixels], query_names: Sequence[str]) -> str:
    in_queries, in_hit = combine_maps(explanation)
    figures = []
    for number, grid in enumerate(in_queries):
        name = query_names[number] if number < len(query_names) else ""
        region = explanation.region if number == 0 else None
        figures.append(_figure(f"q{number}", sides, grid, "Query", name, region))
    if not in_queries:
        asked = "words were asked for" if explanation.text is None else f"“{explanation.text}”"
        figures.append(f'<figure class="empty"><p>No picture: {text(asked)}.</p></figure>')
    if in_hit is None:
        figures.append('<figure class="empty"><p>The file cannot be read.</p></figure>')
    else:
        figures.append(_figure(_HIT, sides, in_hit, "Hit", Path(explanation.hit_path).name))
    return f"""<section class="stage" aria-label="Both pictures">
<div class="above"><p class="says" aria-live="polite">What matched: all words together</p>{SCALE}
<label><input type="checkbox" class="plain"> without the glow</label></div>
<div class="pictures">{"".join(figures)}</div>
</section>"""


def _figure(
    side: str, sides: dict[str, Pixels], grid: Grid, role: str, name: str, region: Box | None = None
) -> str:
    image = heat_map(side, sides[side], grid, f"What matched in the {role.lower()}", region)
    caption = f"<figcaption><small>{role}</small> {text(name)}</figcaption>"
    return f'<figure style="{shape(sides[side])}">{image}{caption}</figure>'


def _words(explanation: Explanation, sides: dict[str, Pixels], top: int | None) -> str:
    shown = explanation.parts[:top]
    rows, before, whole = [], 0.0, explanation.positive_sum
    for number, part in enumerate(shown):
        rows.append(_word(explanation, sides, number, before))
        before += part.word.contribution
    n_more = len(explanation.parts) - len(shown)
    if n_more:
        rest = sum(explanation.rounded_contributions()[len(shown) :])
        more, value = count(n_more, "more word"), f"<b>{_signed(rest)}</b>"
        last = bar(explanation.sparse - rest, rest, whole)
        rows.append(f'<li class="rest"><div><h3>{more} {value}</h3>{last}</div></li>')
    if not rows:
        return ""
    return f"""<section class="why"><h2>The words, and what each gives</h2>
{_stack(explanation, len(shown), whole)}
<ol class="words">{"".join(rows)}</ol>
<p class="sum"><span>BM25 score</span> <b>{explanation.sparse:.2f}</b></p></section>"""


def _stack(explanation: Explanation, n_shown: int, whole: float) -> str:
    """Draw all that speaks for the hit as one bar, a stretch a word."""
    stretches = []
    for number, part in enumerate(explanation.parts):
        if part.word.contribution <= 0:
            break
        row = f' data-row="{number}"' if number < n_shown else ""
        about = f"{part.word.label} {part.word.contribution:+.2f}"
        size = 100 * part.word.contribution / (whole or 1)
        stretches.append(f'<i{row} style="width:{size:.3f}%" title="{text(about)}"></i>')
    ends = f"<small><span>0</span><span>{whole:.2f}</span></small>"
    return f'<div class="stack" aria-hidden="true"><div>{"".join(stretches)}</div>{ends}</div>'


def _word(explanation: Explanation, sides: dict[str, Pixels], number: int, before: float) -> str:
    part = explanation.parts[number]
    word, value = part.word, explanation.rounded_contributions()[number]
    against = " against" if word.contribution < 0 else ""
    whole = explanation.positive_sum
    of = "the score" if explanation.parts[-1].word.contribution >= 0 else "what speaks for it"
    says = "speaks against it" if against else f"{percent_of(word.contribution, whole)} of {of}"
    amounts = f"tf {word.query_tf:.2f} in the query, {word.tf:.2f} in the hit"
    return f"""<li class="word{against}" tabindex="0" data-label="{text(word.label)}">
<div class="maps">{"".join(_places(part, sides))}</div>
<div><h3>{text(word.label)} <b>{_signed(value)}</b></h3>
{bar(before, word.contribution, whole)}
<p>{says}</p>
<details class="how"><summary>{_factors(part, value)}</summary>
{_formula(explanation, part)}</details>
<small>{amounts} · in {word.df:,} of {explanation.match.pictures:,} pictures</small></div></li>"""


def _places(part: Part, sides: dict[str, Pixels]) -> Iterator[str]:
    label, in_query, side = part.word.label, part.in_query, f"q{part.best_query}"
    if in_query is None or not in_query.any():
        yield '<p class="gone">in no picture asked with</p>'
    else:
        yield heat_map(side, sides[side], in_query, f"Where {label} is in the query")
    if part.in_hit is not None:
        yield heat_map(_HIT, sides[_HIT], part.in_hit, f"Where {label} is in the hit")


def _factors(part: Part, contribution: float) -> str:
    word = part.word
    weight, value = _signed(word.weight, ".3g"), _signed(contribution, ".2f")
    return f"idf {word.idf:.2f} × saturation {word.saturation:.2f} × weight {weight} = {value}"


def _formula(explanation: Explanation, part: Part) -> str:
    word, match = part.word, explanation.match
    idf = f"ln(1 + ({match.pictures} − {word.df} + 0.5) / ({word.df} + 0.5))"
    length = f"{match.length:.2f} / {match.average_length:.2f}"
    saturation = (
        f"{word.tf:.2f} × {K1 + 1:g} / ({word.tf:.2f} + {K1:g} × ({1 - B:g} + {B:g} × {length}))"
    )
    return f"""<dl><div><dt>idf</dt><dd>{idf} = {word.idf:.3f}</dd></div>
<div><dt>saturation</dt><dd>{saturation} = {word.saturation:.3f}</dd></div></dl>"""


def _missing(asked: Iterable[QueryWord]) -> str:
    shown = "".join(f"<li>{text(one.label)} <small>idf {one.idf:.2f}</small></li>" for one in asked)
    if not shown:
        return ""
    return f'<section><h2>Asked for, and not in it</h2><ul class="missing">{shown}</ul></section>'


def _legend(explanation: Explanation) -> str:
    match = explanation.match
    region = "<p>Only what is in the frame was asked for.</p>" if explanation.region else ""
    return f"""<p>A picture glows where a word is active <span class="glow"
aria-hidden="true"></span> from faint to its strongest place in that picture; grey is where it is
not. Above the words, the glow is that of all of them, each by what it gives.</p>{region}
<p>A word gives <b>idf × saturation × weight</b>. <b>idf</b> is high for words that few pictures
have: df of N. <b>Saturation</b> grows with how much of the word there is in the hit (tf), ever more
slowly, up to {K1 + 1:g}; long pictures get less for the same. The hit’s length |d|, all its tf
together, is {match.length:.2f}; the average of all {match.pictures:,} pictures is
{match.average_length:.2f}. The <b>weight</b> is 1 unless the question was steered. The bars start
where the ones above end, so the last one ends at the score.</p>"""


def _signed(value: float, form: str = "+.2f") -> str:
    """Return a number with a minus that is as wide as a plus.

    >>> _signed(2.5), _signed(-2.5), _signed(-0.5, ".3g")
    ('+2.50', '−2.50', '−0.5')
    """
    return format(value, form).replace("-", "−")
