"""`rocketkv inspect`: one page that needs nothing but itself, and what a browser shows of it."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rocketkv.commands.inspect_answer import expected_places
from rocketkv.evals.inspect_page import PageText, levels, packed, page
from rocketkv.evals.inspection import Inspection, inspect_answer
from rocketkv.evals.token_text import wanted
from rocketkv.evals.verdict import Verdict
from rocketkv.hf.bars import no_bars
from rocketkv.policies.registry import make_policy
from support.chromium import browser, chromium_path

EVIL = "</script><script>document.title='gone'</script><!-- <img src=http://example.org/x onerror=alert(1)> & \u2028"


class Elements(HTMLParser):
    """Which elements a page has, with their attributes, and the texts of its scripts and titles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {"script": [], "title": []}
        self.within = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.found.append((tag, dict(attrs)))
        self.within = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag) -> None:
        self.within = ""

    def handle_data(self, data) -> None:
        if self.within in self.texts:
            self.texts[self.within][-1] += data


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "document.txt"
    path.write_text("the quick brown fox jumps over 4711 lazy dogs. " * 2 + "<b>é</b>\n" * 10)
    return path


def inspect(cli, folder, document, out, *arguments):
    return cli("inspect", "--model", folder, "--prompt-file", document, "--question", "How many?", "--budget", "32",
               "--max-new-tokens", "4", "--out", out, *arguments)  # fmt: skip


def data_of(text: str) -> dict:
    return json.loads(Elements(text).texts["script"][0])


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)


def test_the_page_says_what_the_arrays_say(cli, folder, document, tmp_path, tokenizer) -> None:
    out = tmp_path / "deep" / "page.html"
    done = inspect(cli, folder, document, out, "--expect", "4711", "--set", "split=0.5")
    assert done.code == 0, done.err
    assert done.out.startswith("answer   ") and "\nverdict  " in done.out and "\nfull     " in done.out
    assert "does not hold “4711”" in done.out and f"wrote {out}" in done.err
    data = data_of(out.read_text(encoding="utf-8"))
    prompt = data["ids"][: data["promptTokens"]]
    assert "".join(data["pieces"][: data["promptTokens"]]) == tokenizer.decode(prompt)
    assert [["".join(data["pieces"][a:b]) for a, b in data["marked"]]] == [["4711", "4711"]]
    assert ["policy", "rocketkv 32 (split=0.5)"] in data["facts"]
    with no_bars():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = inspect_answer(model, make_policy("rocketkv", 32, split="0.5"), prompt, max_new_tokens=4)
    assert data["ids"][len(prompt) :] == found.answer_ids and data["full"]["ids"] == found.full_ids
    layers, heads, tokens = found.kept.shape
    kept = np.unpackbits(unpacked(data["kept"]).reshape(layers, heads, -1), axis=-1, bitorder="little")
    np.testing.assert_array_equal(kept[..., :tokens], found.kept)
    np.testing.assert_array_equal(unpacked(data["reads"]).reshape(found.reads.shape), found.reads)
    shares = (unpacked(data["attention"]).reshape(found.kept.shape) / 255.0) ** 2
    np.testing.assert_allclose(shares, found.attention, atol=1 / 255)


def test_nothing_comes_from_elsewhere(cli, folder, document, tmp_path) -> None:
    out = tmp_path / "page.html"
    assert inspect(cli, folder, document, out, "--no-full").code == 0
    text = out.read_text(encoding="utf-8")
    elements = Elements(text)
    policy = next(attrs["content"] for tag, attrs in elements.found if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'") and "http" not in policy
    assert not any({"src", "href", "srcset", "action"} & set(attrs) for _, attrs in elements.found)
    assert not re.search(r"https?:|//\w+\.|@import|url\(|fetch\(|XMLHttp|WebSocket|import\(", text)
    assert "{{" not in text.replace("{{\\w", "") and len(elements.texts["script"]) == 2
    assert data_of(text)["full"] is None and data_of(text)["verdict"]["label"] == "nothing to judge"


def evil_page() -> str:
    found = Inspection([1, 2], [3], [0], np.ones((1, 1, 2), bool), np.zeros((0, 1, 1, 0), np.uint8))
    verdict = Verdict(EVIL, "none", [EVIL])
    return page(found, PageText(EVIL, [EVIL, "{{script}}", EVIL], [False] * 3, verdict, facts=[(EVIL, EVIL)]))


def test_texts_stay_texts() -> None:
    text = evil_page()
    elements = Elements(text)
    assert len(elements.texts["script"]) == 2 and not any(tag == "img" for tag, _ in elements.found)
    assert elements.texts["title"] == [EVIL]
    assert data_of(text)["pieces"] == [EVIL, "{{script}}", EVIL] and "\u2028" not in elements.texts["script"][0]


def test_levels_and_bytes_by_hand() -> None:
    assert levels(np.array([0.0, 0.25, 1.0])).tolist() == [0, 128, 255]
    assert unpacked(packed(np.array([[1, 2], [3, 4]], np.uint8).T)).tolist() == [1, 3, 2, 4]


def test_places_in_the_question_do_not_count_beside_others() -> None:
    pieces = ["red", " or", " blue", "? ", "Is it", " red", "?"]
    assert expected_places(pieces, wanted("red"), "Is it red?") == [(0, 1)]
    assert expected_places(pieces, wanted("red"), "") == [(0, 1), (5, 6)]
    assert expected_places(pieces, wanted("it"), "Is it red?") == [(4, 5)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--expect", " "), "--expect is empty: give words"),
        (("--policy", "rocket"), "unknown policy"),
        (("--budget", "3"), "below 16"),
        (("--set", "budget_tokens=3"), "is no option of a policy"),
    ],
)
def test_bad_input(cli, folder, document, tmp_path, arguments, words) -> None:
    done = inspect(cli, folder, document, tmp_path / "page.html", *arguments)
    assert done.code == 2 and done.out == "" and words in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_a_directory_is_no_page(cli, folder, document, tmp_path) -> None:
    done = inspect(cli, folder, document, tmp_path)
    assert done.code == 2 and "is a directory: name a file in it" in done.err and done.err.count("\n") == 1


@pytest.fixture
def tab(tmp_path):
    program = chromium_path()
    if program is None:
        pytest.skip("no chromium on this machine: `apt-get install chromium` brings one")
    with browser(program, tmp_path / "profile") as opened:
        yield opened


SELECTION = "document.getElementById('selection').textContent"
ALL = "[...document.querySelectorAll('.t')]"
DETAIL = "document.getElementById('detail').textContent"


def pick(tab, name: str, value: object) -> None:
    tab.value(f"(e => {{ e.value = '{value}'; e.onchange(); }})(document.getElementById('{name}'))")


def press(tab, key: str) -> None:
    tab.value(f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))")


def test_a_browser_shows_what_was_kept_and_read(cli, folder, document, tmp_path, tab) -> None:
    out = tmp_path / "page.html"
    arguments = ("--policy", "adakv+exact-topk", "--expect", "4711")
    assert inspect(cli, folder, document, out, *arguments).code == 0
    data = data_of(out.read_text(encoding="utf-8"))
    tokens, layers, heads = data["promptTokens"], len(data["layers"]), data["heads"]
    kept = np.unpackbits(unpacked(data["kept"]).reshape(layers, heads, -1), axis=-1, bitorder="little")[..., :tokens]
    reads = unpacked(data["reads"]).reshape(-1, layers, data["readHeads"], data["readBytes"])
    reads = np.unpackbits(reads, axis=-1, bitorder="little")
    assert data["readHeads"] == 2 * heads, "query heads read for themselves"

    tab.open(out.as_uri())
    assert tab.value("document.querySelector('h1').textContent") == data["verdict"]["label"]
    assert tab.value(f"{ALL}.length") == len(data["pieces"])
    assert tab.value("document.querySelectorAll('.t.marked').length") == 8
    assert f"{kept.sum() / (layers * heads):,.1f}".removesuffix(".0") + f" of {tokens} prompt" in tab.value(SELECTION)

    pick(tab, "layer", 1)
    pick(tab, "head", 0)
    tab.value("document.querySelectorAll('#answer button')[2].click()")  # the step that chose answer token 3
    mine, step = kept[1, 0], reads[1, 1, :2]
    assert tab.value(SELECTION).startswith(f"Layer 1, KV head 0: {mine.sum()} of {tokens} prompt tokens kept.")
    mean = f"{step.sum() / 2:.1f}".removesuffix(".0")
    assert f"The step that chose answer token 3 read {mean} tokens" in tab.value(SELECTION)
    assert tab.value(f"{ALL}.map(t => t.classList.contains('gone'))")[:tokens] == [not value for value in mine]
    shades = np.array(tab.value(f"{ALL}.map(t => Number(t.style.getPropertyValue('--r')))"))
    held = tokens + 2  # the first two tokens of the answer were there to be read
    np.testing.assert_allclose(shades[:held] ** 2, step[:, :held].mean(0), atol=2e-3)
    place = int(step.sum(0)[:tokens].argmax())
    tab.value(f"document.querySelectorAll('.t')[{place}].click()")
    assert f"read {step[:, place].sum()} times of at most 2" in tab.value(DETAIL)
    assert tab.value("location.hash") == f"#layer=1&head=0&step=3&token={place + 1}"

    pick(tab, "step", 1)
    assert "the prompt's own pass, which reads everything" in tab.value(SELECTION)
    press(tab, "]")
    assert "The step that chose answer token 2 read" in tab.value(SELECTION)
    press(tab, "Escape")
    assert tab.value(SELECTION).startswith("All layers, all KV heads")
    assert tab.requests == [out.as_uri()] and tab.errors == []


def test_a_browser_says_where_everything_is_read(cli, folder, document, tmp_path, tab) -> None:
    out = tmp_path / "page.html"
    assert inspect(cli, folder, document, out, "--set", "skip_layers=1").code == 0
    tab.open(out.as_uri() + "#layer=0")
    assert "Reads everything" in tab.value(SELECTION)
    assert "0: reads everything" in tab.value("document.getElementById('layer').textContent")
    pick(tab, "layer", 1)
    assert "Reads everything" not in tab.value(SELECTION)


def test_a_browser_runs_no_text(tmp_path, tab) -> None:
    out = tmp_path / "evil.html"
    out.write_text(evil_page(), encoding="utf-8")
    tab.open(out.as_uri())
    assert tab.value("document.title").startswith("</script><script>")
    assert tab.value("document.querySelector('.t').textContent") == EVIL
    assert tab.value("document.images.length") == 0
    assert tab.requests == [out.as_uri()] and tab.errors == []
