"""Pictures that glow on a page: each photo is in it once, heat maps are small and laid over it.

The style sheet, page.css, mixes them as `heatmaps.overlay` does.
"""

import io

from PIL import Image

from bm25v.explain import crops
from bm25v.explain.explanation import Grid, Pixels
from bm25v.explain.heatmaps import heat_layer
from bm25v.explain.markup import embedded, text
from bm25v.search.regions import Box

_SIDE = 760  # of a photo, in pixels


def photo(side: str, image: Pixels) -> str:
    """Return a rule of style that shows a photo wherever its `side` of the page is named."""
    jpeg = crops.encode_jpeg(crops.shrink(image, side=_SIDE))
    return f".photo.{side}{{background-image:url({embedded(jpeg, 'jpeg')})}}"


def heat_map(side: str, image: Pixels, grid: Grid, about: str, region: Box | None = None) -> str:
    """Return a photo that glows where the grid is; a frame around the region that counts."""
    file = io.BytesIO()
    Image.fromarray(heat_layer(grid)).save(file, "PNG", optimize=True)
    style = f"{shape(image)};--heat:url({embedded(file.getvalue(), 'png')})"
    frame = ""
    if region is not None:
        x, y, w, h = (f"{100 * share:.2f}%" for share in region)
        frame = f'<i class="region" style="left:{x};top:{y};width:{w};height:{h}"></i>'
    return (
        f'<div class="map" data-side="{side}" role="img" aria-label="{text(about)}" '
        f'style="{style}"><i class="photo {side}"></i><i class="heat"></i>'
        f'<i class="photo light {side}"></i>{frame}</div>'
    )


def shape(image: Pixels) -> str:
    """Return how wide a picture is for its height, for the style sheet."""
    height, width = image.shape[:2]
    return f"--shape:{width / height:.4f}"
