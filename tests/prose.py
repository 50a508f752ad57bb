"""Measures of the code's text, and draws of docstrings to read.

    python tests/prose.py                        print the measures of each folder
    python tests/prose.py middleware/core        print those of some folders
    python tests/prose.py --draw 7 [FOLDER ...]  print 20 docstrings of each folder, drawn with seed 7

A reader who sees only a drawn docstring must be able to say what the thing is for. The measures are a thermometer: a
sentence that passes and has to be read twice is still wrong. ``tests/test_prose.py`` holds the limits.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DRAWN = ("middleware/core", "middleware/client", "middleware/planning", "emulation", "experiments")
FOLDERS = (
    "middleware/core", "middleware/client", "middleware/planning", "middleware/protocol", "middleware/shell",
    "middleware/network", "middleware/platform", "operators", "emulation", "experiments", "benchmarks",
)  # fmt: skip
PRONOUNS = frozenset({
    "what", "which", "that", "those", "these", "one", "ones", "it", "its", "they", "them", "their", "such", "whose",
    "whom", "who", "this", "others", "other", "another", "each", "some", "any", "all",
})  # fmt: skip
OPENINGS = frozenset({
    "What", "Whether", "How", "Who", "Which", "Where", "Over", "Of", "When", "Those", "All", "Something", "Nobody",
})  # fmt: skip
NAMES = frozenset({"each", "one", "said", "told", "there", "those"})  # no names of a value
ONLY_RULES = re.compile(r"#\s*R\d+(, R\d+)*( (of|in) .*)?\s*")
DEFINES = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Docstring(NamedTuple):
    """Docstring with the file and the name of the thing that it describes."""

    where: str
    text: str

    @property
    def words(self) -> list[str]:
        """Words, without code and examples."""
        return re.findall(r"[A-Za-z']+", self._prose)

    @property
    def sentences(self) -> int:
        """Number of sentences, which end at a full stop."""
        return max(1, len(re.findall(r"[.!?](?:\s|$)", self._prose)))

    @property
    def _prose(self) -> str:
        return re.sub(r"``[^`]*``|:[a-z]+:`[^`]*`|>>>.*", "X", self.text)


class Measures(NamedTuple):
    """Measures of some docstrings. Shares are of 1."""

    docstrings: int
    words: int
    pronouns: float
    openings: float
    words_a_sentence: float


def files(folder: str) -> list[Path]:
    """Return the Python files of a folder, in their order."""
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def docstrings(path: Path) -> Iterator[Docstring]:
    """Yield the docstrings of a file: of the module, and of the classes and functions in it."""

    def inside(node: ast.AST, name: str) -> Iterator[Docstring]:
        if isinstance(node, DEFINES | ast.Module) and (text := ast.get_docstring(node)):
            yield Docstring(f"{path.relative_to(ROOT)}{name and ':'}{name}", text)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, DEFINES):
                yield from inside(child, f"{name}.{child.name}".lstrip("."))
            else:
                yield from inside(child, name)

    yield from inside(parsed(path), "")


def measures(texts: Sequence[Docstring]) -> Measures:
    """Return the measures of some docstrings."""
    words = [word for text in texts for word in text.words]
    first = [text.text.split()[0].strip("`*") for text in texts]
    return Measures(
        len(texts),
        len(words),
        sum(word.lower() in PRONOUNS for word in words) / max(1, len(words)),
        sum(word in OPENINGS for word in first) / max(1, len(texts)),
        len(words) / max(1, sum(text.sentences for text in texts)),
    )


def bare_rules(path: Path) -> list[str]:
    """Return the comments that are only the number of a rule, with their lines."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"#\s*R\d", text):  # tokens take long
        return []
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = (token for token in tokens if token.type == tokenize.COMMENT)
    return [
        f"{path.relative_to(ROOT)}:{comment.start[0]}: {comment.string}"
        for comment in comments
        if ONLY_RULES.fullmatch(comment.string)
    ]


def pronoun_names(path: Path) -> list[str]:
    """Return the local variables that are named like pronouns, with their lines. Fields of classes do not count."""
    found: dict[int, str] = {}
    if not re.search(rf"\b_?({'|'.join(sorted(NAMES))})\b", path.read_text(encoding="utf-8")):
        return []
    for function in ast.walk(parsed(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.strip("_") in NAMES:
                    found[id(node)] = f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}"
    return sorted(set(found.values()))


def main(words: Sequence[str]) -> int:
    """Print the measures, or the drawn docstrings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="folders, from the root of the project")
    parser.add_argument("--draw", type=int, metavar="SEED", help="print docstrings that are drawn with this seed")
    parser.add_argument("--count", type=int, default=20, help="docstrings of each folder (%(default)s)")
    options = parser.parse_args(words)
    for folder in options.folders or (FOLDERS if options.draw is None else DRAWN):
        texts = [text for path in files(folder) for text in docstrings(path)]
        if options.draw is None:
            figures = measures(texts)
            print(
                f"{folder:22}{figures.docstrings:6} docstrings, {figures.words:6} words:"
                f" {figures.pronouns:5.1%} pronouns and determiners,"
                f" {figures.openings:5.1%} begin with What, Whether, How or the like,"
                f" {figures.words_a_sentence:4.1f} words a sentence"
            )
            continue
        for text in random.Random(options.draw).sample(texts, min(options.count, len(texts))):
            print(f"--- {text.where}\n{text.text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
