"""Images in the terminal: what each protocol sends is decoded again."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from bm25v.errors import WrongUse
from bm25v.explanations.terminal import (
    Cell,
    choose_protocol,
    draw_half_blocks,
    draw_row,
    encode_iterm2,
    encode_kitty,
    encode_sixel,
)
from tests import test_cli
from tests.conftest import make_image, make_pixels
from tests.terminal import needs_terminal, show
from tests.test_cli import Run, failed

run, indexed = test_cli.run, test_cli.indexed


def decode_kitty(sent: str) -> tuple[dict[str, str], Image.Image]:
    commands = re.findall(r"\x1b_G([^;]*);([A-Za-z0-9+/=]*)\x1b\\", sent)
    assert "".join(f"\x1b_G{keys};{chunk}\x1b\\" for keys, chunk in commands) == sent
    assert max(len(chunk) for _, chunk in commands) <= 4096
    assert [keys[-3:] for keys, _ in commands] == ["m=1"] * (len(commands) - 1) + ["m=0"]
    content = base64.b64decode("".join(chunk for _, chunk in commands))
    keys = dict(pair.split("=") for pair in commands[0][0].split(","))
    return keys, Image.open(io.BytesIO(content))


def decode_iterm2(sent: str) -> tuple[dict[str, str], Image.Image]:
    match = re.fullmatch(r"\x1b\]1337;File=([^:]*):([A-Za-z0-9+/=]*)\x07", sent)
    assert match is not None
    keys = dict(pair.split("=") for pair in match[1].split(";"))
    content = base64.b64decode(match[2])
    assert int(keys["size"]) == len(content)
    return keys, Image.open(io.BytesIO(content))


def decode_sixel(sent: str) -> NDArray[np.uint8]:
    """Return the pixels as RGBA; those that were not drawn are transparent."""
    match = re.fullmatch(r'\x1bP0;1;0q"1;1;(\d+);(\d+)(.*)\x1b\\', sent)
    assert match is not None
    width, height = int(match[1]), int(match[2])
    pixels = np.zeros((height + 6, width, 4), np.uint8)
    colours, colour, x, y = {}, 0, 0, 0
    for token in re.findall(r"#\d+;2;\d+;\d+;\d+|#\d+|!\d+[?-~]|[?-~]|\$|-", match[3]):
        if token[0] == "#":
            number, *rest = map(int, token[1:].split(";"))
            colour = number
            if rest:
                colours[number] = [round(255 * share / 100) for share in rest[1:]]
        elif token == "$":
            x = 0
        elif token == "-":
            x, y = 0, y + 6
        else:
            length = int(token[1:-1]) if token[0] == "!" else 1
            for bit in range(6):
                if (ord(token[-1]) - 63) >> bit & 1:
                    pixels[y + bit, x : x + length] = [*colours[colour], 255]
            x += length
            assert x <= width
    assert not pixels[height:].any()
    return pixels[:height]


def test_kitty_and_iterm2_send_the_same_pixels() -> None:
    image = make_image(3, side=200).convert("RGBA")
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    for shown in (image, Image.fromarray(noise).convert("RGBA")):  # one chunk, and many
        keys, decoded = decode_kitty(encode_kitty(shown, 20, 10))
        assert (keys["a"], keys["f"], keys["c"], keys["r"]) == ("T", "100", "20", "10")
        assert np.array_equal(np.asarray(decoded), np.asarray(shown))
        keys, decoded = decode_iterm2(encode_iterm2(shown, 20, 10))
        assert (keys["inline"], keys["width"], keys["height"]) == ("1", "20", "10")
        assert np.array_equal(np.asarray(decoded), np.asarray(shown))


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (30, 12), (33, 31)])
def test_sixels_have_the_pixels_and_leave_out_transparent_ones(size: tuple[int, int]) -> None:
    image = make_image(5).resize(size, Image.Resampling.NEAREST).convert("RGBA")
    pixels = np.array(image)
    pixels[: size[1] // 2, : size[0] // 2, 3] = 0
    decoded = decode_sixel(encode_sixel(Image.fromarray(pixels)))
    assert np.array_equal(decoded[..., 3], pixels[..., 3])
    drawn = pixels[..., 3] == 255
    errors = np.abs(decoded[drawn].astype(int) - pixels[drawn])
    assert errors.max() <= 3, "25 colours, each in whole percents"


def test_a_row_puts_each_image_into_its_box_and_restores_the_cursor() -> None:
    row = [np.full((40, 80, 3), 200, np.uint8), None, np.full((90, 30, 3), 90, np.uint8)]
    sent = draw_row(row, "kitty", columns=8, lines=3, gap=2, cell=Cell(10, 20))
    start, end = "\n\n\n\x1b[3A\x1b7", "\x1b8\x1b[3B"
    assert sent.startswith(start)
    assert sent.endswith(end)
    keys, strip = decode_kitty(sent.removeprefix(start).removesuffix(end))
    assert (int(keys["c"]), int(keys["r"])) == (28, 3)
    assert strip.size == (280, 60)
    alpha = np.asarray(strip)[..., 3]
    assert alpha[:, :80].any()
    assert not alpha[:, 80:200].any()
    assert (np.asarray(strip)[:, 200:][alpha[:, 200:] > 0][:, 0] == 90).all()
    assert alpha[-1, 0] == 255, "as wide as its box, at the bottom"


def test_half_blocks_stay_within_their_lines() -> None:
    tall = np.zeros((90, 20, 3), np.uint8)
    lines = draw_half_blocks(tall, columns=18, max_lines=9).plain.splitlines()
    assert (len(lines), {len(line) for line in lines}) == (9, {4})


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({}, "blocks"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "vscode"}, "blocks"),
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux"}, "blocks"),
        ({"TERM": "screen-256color", "TERM_PROGRAM": "iTerm.app"}, "blocks"),
        ({"TERM": "dumb", "BM25V_TERMINAL": "sixel"}, "sixel"),
        ({"TERM": "xterm-kitty", "BM25V_TERMINAL": "blocks"}, "blocks"),
    ],
)
def test_the_protocol_follows_from_the_environment(
    environment: dict[str, str], protocol: str
) -> None:
    assert choose_protocol(environment) == protocol


def test_an_unknown_choice_is_an_error() -> None:
    with pytest.raises(WrongUse, match="BM25V_TERMINAL=vt100: choose one of kitty, iterm2"):
        choose_protocol({"BM25V_TERMINAL": "vt100"})


def test_without_a_terminal_search_prints_the_table_and_says_so(
    indexed: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BM25V_TERMINAL", raising=False)
    plain = indexed("search", photos / "3.png", "-k", 2)
    shown = indexed("search", photos / "3.png", "-k", 2, "--show")
    assert shown.err == "note: this terminal has no colours to show images with: use -o\n"
    assert shown.out.splitlines()[:3] == plain.out.splitlines()[:3]
    monkeypatch.setenv("BM25V_TERMINAL", "vt100")
    failed(indexed("search", photos / "3.png", "--show"), 2, "BM25V_TERMINAL=vt100")


def test_search_shows_thumbnails_by_the_chosen_protocol(
    indexed: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [hit["path"] for hit in indexed("search", photos / "3.png", "--json").json["hits"]][:6]
    Path(names[4]).unlink()
    for protocol, pattern in (
        ("kitty", r"\x1b_G.*?m=0;[^\x1b]*\x1b\\"),
        ("iterm2", r"\x1b\]1337;.*?\x07"),
        ("sixel", r"\x1bP.*?\x1b\\"),
    ):
        monkeypatch.setenv("BM25V_TERMINAL", protocol)
        outcome = indexed("search", photos / "3.png", "-k", 6, "--show")
        assert outcome.code == 0
        rows = re.findall(pattern, outcome.out, re.DOTALL)
        assert len(rows) == 2, "four and two"
        decode = {"kitty": decode_kitty, "iterm2": decode_iterm2}.get(protocol)
        strip = np.asarray(decode(rows[0])[1]) if decode else decode_sixel(rows[0])
        for n in range(4):
            box = strip[:, 200 * n : 200 * n + 180]
            expected = make_pixels(int(Path(names[n]).stem)).mean(axis=(0, 1))
            assert np.abs(box[box[..., 3] > 0][:, :3].mean(axis=0) - expected).max() < 4
        for name in names:
            assert Path(name).name in outcome.out
        assert "does not exist" in outcome.out


@needs_terminal
def test_half_blocks_fit_eighty_columns(indexed: Run, photos: Path, tmp_path: Path) -> None:
    query = ("search", "photos/3.png", "-k", 5, "--show")
    shown = show(*query, folder=tmp_path, columns=80, COLORTERM="truecolor", BM25V_TERMINAL="")
    assert shown.code == 0
    lines = shown.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("▀" in line for line in lines) == 2 * 12
    assert re.search(r"1 \d\.\d+ +2 \d\.\d+ +3 \d\.\d+\n", shown.text)
