"""`make pictures` and what it makes: files that exist, are small and load nothing from elsewhere."""

import io
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from tests.support.scripts import load_script

ROOT = Path(__file__).parents[1]


pictures = load_script(ROOT / "docs" / "pictures.py")
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
MADE = {
    *(f"{each.name}.svg" for each in (pictures.PLAN, pictures.RUN)),
    *(f"{screen.name}.png" for screen in pictures.SCREENS),
    f"{pictures.DASHBOARD}.png",
}


def list_images(text: str) -> list[str]:
    return re.findall(r'(?:!\[[^\]]*\]\(|src="|srcset=")([^)"]+)', text)


def test_the_tour_shows_every_picture_that_is_made() -> None:
    assert {Path(image).name for image in list_images(TOUR)} == MADE
    assert {name for image in list_images(README) if (name := Path(image).name).startswith("tour-")} <= MADE


def test_images_exist_and_are_local() -> None:
    for folder, text in ((ROOT, README), (ROOT / "docs", TOUR)):
        images = list_images(text)
        assert images
        assert [image for image in images if not (folder / image).is_file()] == []


@pytest.mark.parametrize("path", sorted(pictures.IMAGES.iterdir()), ids=lambda path: path.name)
def test_pictures_are_small_and_load_nothing(path: Path) -> None:
    assert path.stat().st_size <= pictures.MOST_BYTES
    if path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        ET.fromstring(text)  # noqa: S314 — our own file
        assert "https://" not in text.replace("https://matplotlib.org/", "")
        assert re.findall(r"(?:href=\"|url\()(?!#)[^\")]+|@import|@font-face", text) == []


def test_the_tour_names_the_commands_of_its_pictures() -> None:
    commands = (pictures.PLAN.words, pictures.RUN.words, pictures.DEMO, pictures.SWEEP, pictures.UP)
    assert [words for words in commands if f"cfel {words}" not in TOUR] == []


def test_a_terminal_is_drawn_without_another_server() -> None:
    svg = pictures.render_terminal("plan x.csv", "ρ  θ\n<1> & 2\n")
    ET.fromstring(svg)  # noqa: S314 — just made
    for words in ("plan", "x.csv", "&lt;1&gt;", "&amp;", "ρ"):
        assert words in svg
    assert "@font-face" not in svg
    assert re.findall(r"https?://(?!www\.w3\.org)", svg) == []


def test_a_palette_keeps_rare_flat_colours() -> None:
    """Two small squares of similar colours on a background with many shades of grey stay two colours."""
    picture = Image.linear_gradient("L").convert("RGB").resize((300, 300))
    for colour, left in (((194, 74, 0), 10), ((181, 122, 0), 60)):
        picture.paste(colour, (left, 10, left + 30, 40))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    small = Image.open(io.BytesIO(pictures.shrink(buffer.getvalue(), "x"))).convert("RGB")
    for colour, left in (((194, 74, 0), 25), ((181, 122, 0), 75)):
        found = small.getpixel((left, 25))
        assert isinstance(found, tuple)
        assert max(abs(a - b) for a, b in zip(found, colour, strict=True)) <= 4


def test_a_picture_that_is_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_BYTES", 10)
    buffer = io.BytesIO()
    Image.new("RGB", (10, 10)).save(buffer, "PNG")
    with pytest.raises(SystemExit, match=r"tour: \d+ bytes, more than 10"):
        pictures.shrink(buffer.getvalue(), "tour")


def test_a_missing_browser_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pictures, "BROWSER", None)
    with pytest.raises(SystemExit, match=r"Chromium.*apt install chromium"):
        pictures.main([str(tmp_path / "to")])
    assert not (tmp_path / "to").exists()


def test_a_command_that_fails_is_shown(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)none\.csv failed:.*none\.csv"):
        pictures.run_command("plan none.csv", tmp_path)


def test_badges_are_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    marks = [each.rpartition(" ")[2] for each in project["project"]["classifiers"] if "Python ::" in each]
    badges = {path.stem: path.read_text(encoding="utf-8") for path in pictures.IMAGES.glob("badge-*.svg")}
    assert f"python: {' | '.join(marks)}<" in badges.pop("badge-python")
    assert f"license: {project['project']['license']}<" in badges.pop("badge-license")
    assert project["tool"]["mypy"]["strict"] is True
    assert "typed: mypy --strict<" in badges.pop("badge-typed")
    assert badges == {}
