"""The text of the code is read once: the measures of ``prose.py`` stay within their limits."""

from __future__ import annotations

import re

import prose
import pytest


@pytest.mark.parametrize("folder", prose.FOLDERS)
def test_docstrings_have_nouns_as_subjects_and_short_sentences(folder: str) -> None:
    figures = prose.measures([text for path in prose.files(folder) for text in prose.docstrings(path)])
    assert figures.docstrings > 50, "the folder has moved; change FOLDERS"
    assert figures.pronouns <= 0.08
    assert figures.openings <= 0.03
    assert figures.words_a_sentence <= 18


@pytest.mark.parametrize("folder", prose.FOLDERS)
def test_comments_say_the_step_of_a_rule_in_words(folder: str) -> None:
    assert [comment for path in prose.files(folder) for comment in prose.bare_rules(path)] == []


@pytest.mark.parametrize("folder", prose.FOLDERS)
def test_variables_are_named_after_their_values(folder: str) -> None:
    assert [name for path in prose.files(folder) for name in prose.pronoun_names(path)] == []


def test_measures_count_words_and_not_code() -> None:
    texts = [
        prose.Docstring("a", "Return what it is. ``that this those``"),
        prose.Docstring("b", "What those hosts have. The host waits."),
    ]
    assert prose.measures(texts) == (2, 12, 4 / 12, 1 / 2, 4.0)


def test_a_draw_is_the_same_for_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = []
    for seed in ("7", "7", "8"):
        assert prose.main(["--draw", seed, "--count", "5", "middleware/network", "operators"]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]
    names = re.findall(r"^--- (\S+)$", drawn[0], re.MULTILINE)
    assert [name.split("/")[0] for name in names] == ["middleware"] * 5 + ["operators"] * 5
