"""The HTML report in a real browser: plots are drawn, numbers are there, nothing is fetched."""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from PIL import Image

from conftest import REPOSITORY, binary

# Parts of two recorded runs, `hold` and `push`, on a host that compiled meanwhile: the figures say nothing of murre.
RESULT = pathlib.Path(__file__).parent / "recorded.json"
WIDTH = 640
# The first two of the colours in bench/src/html/plot.rs.
CURVES = [(0x25, 0x63, 0xEB), (0xD9, 0x77, 0x06)]
WHITE = (255, 255, 255)


def bench():
    """murre-bench: MURRE_BENCH, else the one beside the server under test, else the newest build of this repository."""
    named = os.environ.get("MURRE_BENCH")
    beside = pathlib.Path(binary()).with_name("murre-bench")
    built = [path for path in REPOSITORY.glob("target/*/murre-bench") if path.is_file()]
    found = named or (beside if beside.is_file() else max(built, key=lambda path: path.stat().st_mtime, default=None))
    assert found, "no murre-bench: run `cargo build -p murre-bench`"
    return str(found)


def browser(directory, page, *arguments):
    """Loads the page headless without any network; what was written to stdout."""
    chromium = shutil.which("chromium")
    assert chromium, "there is no Chromium: apt-get install chromium"
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9"]
    command += [f"--user-data-dir={directory}/profile"]
    command += [*arguments, page.as_uri()]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode(errors="replace")
    return ran.stdout.decode()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of the recorded result, and what a browser made of it."""
    directory = tmp_path_factory.mktemp("report")
    page = directory / "report.html"
    command = [bench(), "report", str(RESULT), "--out", str(page)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return directory, page, browser(directory, page, "--dump-dom")


def colours(picture, top=0, bottom=None):
    """How many pixels each colour has between two rows of a picture in a file."""
    with Image.open(picture) as image:
        part = image.convert("RGB").crop((0, top, image.width, bottom or image.height))
    return {colour: count for count, colour in part.getcolors(part.width * part.height)}


def plots(dom):
    """The drawings: view box height and source of each."""
    found = re.findall(r"<svg[^>]*viewBox=\"0 0 (\d+) (\d+)\".*?</svg>", dom, flags=re.DOTALL)
    sources = re.findall(r"<svg.*?</svg>", dom, flags=re.DOTALL)
    assert len(found) == len(sources) and all(int(width) == WIDTH for width, _ in found)
    return [(int(height), source) for (_, height), source in zip(found, sources)]


def test_every_plot_is_really_drawn(report):
    directory, _, dom = report
    drawings = plots(dom)
    assert len(drawings) >= 8, "memory, operations, latency, rates, CPU and shards have one each at least"
    # One under the other in their own size, so that each one's rows are known.
    style = "body{margin:0;background:#fff}svg{display:block;width:640px}"
    stacked = directory / "plots.html"
    stacked.write_text(f"<!DOCTYPE html><style>{style}</style>" + "".join(source for _, source in drawings))
    height = sum(height for height, _ in drawings)
    picture = directory / "plots.png"
    browser(directory, stacked, f"--screenshot={picture}", f"--window-size={WIDTH},{height}")
    assert Image.open(picture).size == (WIDTH, height)
    top = 0
    for rows, source in drawings:
        label = re.search(r'aria-label="([^"]*)"', source)[1]
        counts = colours(picture, top, top + rows)
        drawn = sum(counts.get(colour, 0) for colour in CURVES)
        assert drawn > 150, f"{label}: {drawn} pixels have the colour of a curve or bar"
        other = sum(counts.values()) - counts.get(WHITE, 0) - drawn
        assert other > 400, f"{label}: no axis and no text, {other} pixels are neither white nor curve"
        top += rows


def test_the_numbers_of_the_result_are_in_the_page(report):
    _, _, dom = report
    text = html.unescape(re.sub(r"<[^>]*>", "|", dom))
    result = json.loads(RESULT.read_text())
    assert RESULT.name in text and result["machine"]["cpu"] in text
    assert result["command"] in text, "the command that made it"
    for check in result["checks"]:
        assert check["ok"] and check["name"] in text
    for figure in result["figures"]:
        assert figure["name"].strip() in text, figure
    assert "checks held" in text


def test_the_page_is_drawn_in_the_light_and_in_the_dark_and_needs_nothing_else(report):
    directory, page, dom = report
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\(", dom)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", dom)
    backgrounds = []
    for scheme in ("1", "0"):
        picture = directory / f"page{scheme}.png"
        settings = f"--blink-settings=preferredColorScheme={scheme}"
        browser(directory, page, settings, f"--screenshot={picture}", "--window-size=900,700")
        counts = colours(picture)
        backgrounds.append(max(counts, key=counts.get))
        assert len(counts) > 50, "text and tiles have many colours"
    assert sum(backgrounds[0]) > 600 > 150 > sum(backgrounds[1]), backgrounds
