"""The architecture of the sources as data and checks: imports, words, shape and tests of a file.

Each check takes sources as texts by their paths from the root, so that tests can plant faults, and
returns the findings as lines; none is found where all is well.
"""

import ast
import dataclasses
import functools
import re
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from paths import ROOT

PACKAGES = ("monet_jax", "planners")
type Sources = Mapping[str, str]
type Directions = tuple[tuple[str, ...], ...]

#: Each row may import the rows above it; entries of one row may not import one another. An entry is
#: a folder with all that lies in it, or a file; `__init__` of a package is an entry by itself.
DIRECTIONS = (
    ("monet_jax/_version", "monet_jax/_extras", "monet_jax/_disk"),
    ("monet_jax/ir", "planners", "monet_jax/zoo"),
    ("monet_jax/compiler",),
    ("monet_jax/seconds",),
    ("monet_jax/operators",),
    ("monet_jax/tracing",),
    ("monet_jax/analyzer", "monet_jax/plans"),
    ("monet_jax/transformer", "monet_jax/report"),
    ("monet_jax/candidates",),
    ("monet_jax/search",),
    ("monet_jax/planning",),
    ("monet_jax/_sources", "monet_jax/_step_time"),
    ("monet_jax/_wrapped",),
    ("monet_jax/step",),
    ("monet_jax/_plan",),
    ("monet_jax/_calls",),
    ("monet_jax/_api",),
    ("monet_jax/tools", "monet_jax/flax", "monet_jax/debug"),
    ("monet_jax/__init__",),
    ("monet_jax/bench",),
    ("monet_jax/cli",),
)
#: The same inside `planners`, whose top-level files are entries of their own.
DIRECTIONS_OF_PLANNERS = (
    ("planners/errors", "planners/elements"),
    ("planners/checks",),
    ("planners/graph",),
    ("planners/plan",),
    ("planners/runs", "planners/region_checks"),
    ("planners/transfers",),
    ("planners/replay",),
    ("planners/solver",),
    ("planners/schedules", "planners/regions"),
    ("planners/occupancy", "planners/emission"),
    ("planners/published",),
    ("planners/__init__",),
    ("planners/registry",),
)


@functools.cache
def read_sources() -> Sources:
    """All Python files of the packages by their paths from the root."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


@functools.cache
def tree_of(text: str) -> ast.Module:
    """A parsed source."""
    return ast.parse(text)


@functools.cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a parsed source."""
    return tuple(ast.walk(tree_of(text)))


# ------------------------------------------------------------------------------------- imports


@dataclasses.dataclass(frozen=True)
class Import:
    """An import of a file or of a name from a package.

    Attributes:
        source: the path of the importing file.
        target: the path of the imported file; of a name, of the package's `__init__`.
        line: where it stands.
    """

    source: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


def imports_of(sources: Sources) -> Iterator[Import]:
    """Imports among the sources: relative ones, late ones and those for types included."""
    for source, text in sources.items():
        for node in nodes_of(text):
            for name in _modules(source, node):
                target = _file_of(name, sources)
                if target and target != source:
                    yield Import(source, target, node.lineno)  # type: ignore[attr-defined]


def _modules(source: str, node: ast.AST) -> Iterator[str]:
    """Dotted names of what a statement imports; of `from m import n`, `m.n`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = Path(source).parts[: -node.level] if node.level else ()
        module = ".".join((*package, *filter(None, [node.module])))
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _file_of(name: str, sources: Sources) -> str | None:
    """The file that defines a dotted name: the longest of its prefixes that is a module."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        stem = "/".join(parts[:count])
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if path in sources:
                return path
    return None


def entry_of(path: str, directions: Directions) -> str | None:
    """The entry of a table that a file belongs to."""
    stem = path.removesuffix(".py")
    names = {name for row in directions for name in row}
    parts = stem.split("/")
    return next((x for n in range(len(parts), 0, -1) if (x := "/".join(parts[:n])) in names), None)


def wrong_directions(sources: Sources, directions: Directions) -> list[str]:
    """Files without an entry, and imports of what stands beside or below."""
    row = {name: n for n, names in enumerate(directions) for name in names}
    entries = {path: entry_of(path, directions) for path in sources}
    missing = [f"{path} has no entry" for path, entry in entries.items() if entry is None]
    known = [x for x in imports_of(sources) if entries[x.source] and entries[x.target]]
    return missing + [
        f"{x} upwards"
        for x in known
        if entries[x.source] != entries[x.target]
        and row[entries[x.target]] >= row[entries[x.source]]  # type: ignore[index]
    ]


def import_circles(sources: Sources) -> list[str]:
    """Files that import one another, directly or by others."""
    targets: dict[str, set[str]] = {path: set() for path in sources}
    for found in imports_of(sources):
        targets[found.source].add(found.target)
    left = dict(targets)
    while free := [path for path, read in left.items() if not read & left.keys()]:
        for path in free:
            del left[path]
    # What is left lies on a circle or imports one: of the latter, nothing on a circle imports it.
    while free := [p for p in left if not any(p in left[q] & left.keys() for q in left)]:
        for path in free:
            del left[path]
    return sorted(left)


# --------------------------------------------------------------------------------------- words

#: Words that identifiers no longer have: the first letters of a word, or with "$" all of it.
RETIRED_IN_NAMES = "tap$ taps$ lodge evened$ thrift dearer$ settl nearly$ rival".split()
#: What neither names nor texts have: comments, docstrings and messages.
RETIRED_IN_TEXTS = ("lodge", "evened", "thrift", "dearer", "settl", "rival", "as it were")


def retired_words(sources: Sources) -> list[str]:
    """Where identifiers and texts have words that the glossary has replaced."""
    names = re.compile("|".join(RETIRED_IN_NAMES))
    texts = re.compile(rf"\b(?:{'|'.join(RETIRED_IN_TEXTS)})", re.IGNORECASE)
    found = []
    for path, text in sources.items():
        for name, line in _identifiers(tree_of(text)):
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
            if any(map(names.match, map(str.lower, words))):
                found.append(f"{path}:{line} {name}")
        for number, line in enumerate(text.splitlines(), 1):
            found += [f"{path}:{number} {match[0]!r}" for match in texts.finditer(line)]
    return sorted(set(found))


def _identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name, getattr(node, "lineno", 0)


def questions(sources: Sources) -> list[str]:
    """Modules whose docstring begins with a question."""
    found = []
    for path, text in sources.items():
        first = re.split(r"(?<=[.?!])\s", ast.get_docstring(tree_of(text)) or "", maxsplit=1)[0]
        if first.endswith("?"):
            found.append(f"{path}: {first}")
    return found


# --------------------------------------------------------------------------------------- shape

MOST_LINES, MOST_LINES_OF_CLASS, MOST_FILES = 300, 150, 14
MEDIAN_OF_BODIES, NINTH_DECILE_OF_BODIES = 6, 20

#: Files that may be longer, and why.
LONG_FILES: dict[str, str] = {}
#: Classes that may be longer, and why.
LONG_CLASSES: dict[str, str] = {}
#: Folders that may hold more files, and why.
LARGE_FOLDERS = {"monet_jax/zoo": "a file is a model"}


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the sources.

    Attributes:
        files: lines by file.
        classes: lines by file and class.
        folders: Python files by folder.
        bodies: lines of each function's body without its docstring, in ascending order.
    """

    files: Mapping[str, int]
    classes: Mapping[tuple[str, str], int]
    folders: Mapping[str, int]
    bodies: tuple[int, ...]

    @property
    def median(self) -> float:
        """Of the lines of bodies."""
        return statistics.median(self.bodies or (0,))

    @property
    def ninth_decile(self) -> int:
        """So many lines, or less, have nine of ten bodies."""
        return self.bodies[-(-9 * len(self.bodies) // 10) - 1] if self.bodies else 0


def shape_of(sources: Sources) -> Shape:
    """The sizes of files, classes, folders and functions."""
    classes, bodies = {}, []
    folders: dict[str, int] = {}
    for path, text in sources.items():
        folder = path.rpartition("/")[0]
        folders[folder] = folders.get(folder, 0) + 1
        for node in ast.walk(tree_of(text)):
            if isinstance(node, ast.ClassDef):
                classes[path, node.name] = _lines(node.lineno, node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                statements = node.body[ast.get_docstring(node) is not None :]
                bodies.append(_lines(statements[0].lineno, node) if statements else 0)
    files = {path: len(text.splitlines()) for path, text in sources.items()}
    return Shape(files, classes, folders, tuple(sorted(bodies)))


def _lines(first: int, node: ast.stmt) -> int:
    return (node.end_lineno or first) - first + 1


def misshapen(sources: Sources) -> list[str]:
    """Files, classes and folders over their limits, and functions that are too long together."""
    shape = shape_of(sources)
    found = [
        f"{path}: {lines} lines"
        for path, lines in shape.files.items()
        if lines > MOST_LINES and path not in LONG_FILES
    ]
    found += [
        f"{path}: class {name}: {lines} lines"
        for (path, name), lines in shape.classes.items()
        if lines > MOST_LINES_OF_CLASS and name not in LONG_CLASSES
    ]
    found += [
        f"{folder}: {count} files"
        for folder, count in shape.folders.items()
        if count > MOST_FILES and folder not in LARGE_FOLDERS
    ]
    if shape.median > MEDIAN_OF_BODIES:
        found.append(f"bodies of functions: a median of {shape.median} lines")
    if shape.ninth_decile > NINTH_DECILE_OF_BODIES:
        found.append(f"bodies of functions: a ninth decile of {shape.ninth_decile} lines")
    return found


# ----------------------------------------------------------------------------- tests of a file


def test_of(path: str) -> str:
    """The test file that has a source's name in the mirrored folder, from `tests`."""
    folder, _, name = path.removeprefix("monet_jax/").rpartition("/")
    return f"{folder}/test_{name.lstrip('_')}".removeprefix("/")


def untested(
    sources: Sources, tests: Sources, tested_by: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Sources without a test file of their name or an entry, and entries that name nothing.

    Arguments:
        sources: the sources; `__init__` files are left out, as they only say what is exported.
        tests: all test files by their paths from `tests`.
        tested_by: the tests of what has no test file of its name: of a file, or of a folder, which
            ends with "/", where the same tests are about all of it.
    """
    found, used = [], set()
    for path in (path for path in sources if not path.endswith("__init__.py")):
        folders = (path[: n + 1] for n in reversed(range(len(path))) if path[n] == "/")
        entry = next((x for x in (path, *folders) if x in tested_by), None)
        used.add(entry if test_of(path) not in tests or entry == path else None)
        if test_of(path) in tests and entry == path:
            found.append(f"{path} has a test file of its name, and an entry")
        elif test_of(path) not in tests and entry is None:
            found.append(f"{path} has neither {test_of(path)} nor an entry")
    found += [f"{entry} is an entry of no source" for entry in tested_by if entry not in used]
    named = {(entry, test) for entry, some in tested_by.items() for test in some}
    return found + sorted(f"{entry}: no {test}" for entry, test in named if test not in tests)


if __name__ == "__main__":
    shape = shape_of(read_sources())
    print(f"{len(shape.files)} files, the longest of {max(shape.files.values())} lines")
    print(f"{len(shape.classes)} classes, the longest of {max(shape.classes.values())} lines")
    print(f"{len(shape.folders)} folders, the largest of {max(shape.folders.values())} files")
    print(
        f"{len(shape.bodies)} functions: bodies of {shape.median:g} lines in the median,", end=" "
    )
    print(f"nine of ten of at most {shape.ninth_decile}")
    print(*misshapen(read_sources()), sep="\n")
