"""Reads the workspace file and the files it includes into plain values, and records the file and line of each value.

It reports errors of syntax only: invalid YAML, repeated keys, unset variables, names that are defined twice.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import ConfigError

Trail = tuple[str | int, ...]

MAX_DEPTH = 64  # levels of nested maps and lists
MAX_ALIASED = 200_000  # values that aliases may add to the values in the text

MERGED_MAPS = ("sources", "queries", "models")
MERGED = (*MERGED_MAPS, "customers")
CUSTOMER_COLUMNS = ("id", "name", "time_zone", "active_from", "active_to")

# The loader in C reads a list of ten thousand customers about ten times faster; its nodes carry the same marks.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Resolves and constructs single scalars, so one instance is enough; PyYAML's type hints do not cover this use.
_PLAIN: Any = yaml.SafeLoader("")
_VARIABLE = re.compile(r"(?P<literal>\$\$\{)|\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)")
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {f"{_TAG}str", f"{_TAG}value", f"{_TAG}merge"}
_TYPED_TAGS = {f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null", "timestamp")}

# A value of a variable with at least this length may be a secret: it is hidden in every message, not only in messages
# about its own place.
_SECRET_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Place:
    """File and line of a value."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class KnownFiles:
    """The digests of the files of a document by path, and the lists of customers in them: from their first character
    to the one after the last."""

    digests: dict[str, str] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)


class FilesChanged(Exception):
    """A file is not the one that is known."""


@dataclass(frozen=True, slots=True)
class _Expanded:
    trail: Trail
    value: str
    written: str


def dotted(trail: Trail) -> str:
    """Format `('queries', 'daily', 'checks', 1)` as `queries.daily.checks[1]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in trail).removeprefix(".")


def _related(one: Trail, other: Trail) -> bool:
    """Return whether both lie in the same query, source, customer or top-level key."""
    return all(a == b for a, b in zip(one[:2], other[:2], strict=False))


class Document:
    """The values of the workspace file, the place of each value, and the problems found so far.

    With `known` files the document has no customers: the caller knows them. It has their files, and no places in them.
    """

    def __init__(self, file: Path, known: KnownFiles | None = None) -> None:
        self.file = file.absolute()
        self.files = KnownFiles()
        self.known = known
        self._texts: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.places: dict[Trail, Place] = {(): Place(file.name, 1)}
        self.customer_files: list[Path] = []
        self.incomplete = False  # a whole file could not be read, so unknown names cannot be reported
        # texts with unexpanded variables; they may be stored, unlike the values of the environment
        self._with_variables: dict[Trail, str] = {}
        self._refused: dict[tuple[str, int, str], None] = {}
        self._unreadable: set[Trail] = set()
        self._expanded: list[_Expanded] = []

    def written(self, trail: Trail) -> Trail:
        """Return the part of the trail that exists in the file; steps that pydantic adds are left out."""
        known: Trail = ()
        for part in trail:
            if (*known, part) in self.places:
                known = (*known, part)
        return known

    def place(self, trail: Trail) -> Place:
        return self.places[self.written(trail)]

    def refuse(self, trail: Trail, text: str, place: Place | None = None) -> None:
        """Record a problem, unless it is about a value that was refused as unreadable."""
        shown = self.written(trail)
        if any(shown[:length] in self._unreadable for length in range(len(shown) + 1)):
            return
        at = place or self.places[shown]
        subject = f"{dotted(shown)}: " if shown else ""
        # only these two keys name further files, so only their variables can occur in a file name
        file = self.hide(self.hide(at.file, ("include",)), ("customers",))
        self._refused[(file, at.line, subject + self.hide(text, shown))] = None

    def refuse_unreadable(self, trail: Trail, *texts: str) -> None:
        for text in texts:
            self.refuse(trail, text)
        self._unreadable.add(trail)

    def refuse_file(self, trail: Trail, text: str, place: Place | None = None) -> None:
        self.refuse(trail, text, place)
        self.incomplete = True

    def remember_expansion(self, trail: Trail, value: str, written: str) -> None:
        # repr() as well, because messages quote values and quoting may escape characters
        self._expanded += [_Expanded(trail, form, written) for form in {value, repr(value)[1:-1]} if form]

    def expansions(self) -> Iterator[tuple[Trail, str, str]]:
        """Yield the place of each value that the environment changed, the value, and its text in the file."""
        for item in self._expanded:
            yield item.trail, item.value, item.written

    def remember_variables(self, trail: Trail, written: str) -> None:
        self._with_variables[trail] = written

    def unexpanded(self, trail: Trail) -> Any:
        """Return the value at this place with `${NAME}` unexpanded; None if it contains no variable."""
        if not any(place[: len(trail)] == trail for place in self._with_variables):
            return None
        value: Any = self.values
        for part in trail:
            value = value[part]
        return self._unexpanded(value, trail)

    def _unexpanded(self, value: Any, trail: Trail) -> Any:
        if trail in self._with_variables:
            return self._with_variables[trail]
        if isinstance(value, dict):
            return {key: self._unexpanded(item, (*trail, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._unexpanded(item, (*trail, index)) for index, item in enumerate(value)]
        return value

    def has_variables(self, sections: Collection[str]) -> bool:
        """Return whether a value below one of these top-level keys contains `${NAME}`."""
        return any(trail[0] in sections for trail in self._with_variables)

    def customer_texts(self) -> Iterator[str]:
        """Yield the text of each list of customers in a YAML file."""
        for path, (first, last) in self.files.spans.items():
            yield self._texts[path][first:last]

    def text_of(self, file: Path) -> str:
        """Return the content of a file without its list of customers, if that is known. Raises FilesChanged if the file
        is not the known one."""
        path, data = str(file), file.read_bytes()
        self.files.digests[path] = digest = hashlib.sha256(data).hexdigest()
        if self.known is not None and self.known.digests.get(path) != digest:
            raise FilesChanged(path)
        self._texts[path] = text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        if self.known is None or path not in self.known.spans:
            return text
        first, last = self.known.spans[path]
        return text[:first] + "\n" * text.count("\n", first, last) + text[last:]  # the other lines keep their numbers

    def hide(self, text: str, trail: Trail) -> str:
        """Return the text with values from the environment replaced by `${NAME}`."""
        hidden = {
            item.value: item.written
            for item in self._expanded
            if len(item.value) >= _SECRET_LENGTH or _related(item.trail, trail)
        }
        # a short value is hidden only as a whole word: `5` must not turn `2025` into `202${DAYS}`
        forms = [
            re.escape(value) if len(value) >= _SECRET_LENGTH else rf"(?<!\w){re.escape(value)}(?!\w)"
            for value in sorted(hidden, key=len, reverse=True)
        ]
        return re.sub("|".join(forms), lambda found: hidden[found.group()], text) if forms else text

    def raise_if_refused(self) -> None:
        if self._refused:
            main = self.places[()].file
            lines = sorted(self._refused, key=lambda item: (item[0] != main, item[0], item[1]))
            raise ConfigError("\n".join(f"{file}:{line}: {text}" for file, line, text in lines))


def read_workspace_file(file: Path, environ: Mapping[str, str], known: KnownFiles | None = None) -> Document:
    """Read the workspace file with its included files and its customers.csv into one document, or with `known` files
    everything but the customers. Raises FilesChanged if one of these is another file now."""
    document = Document(file, known)
    _YamlFile(document, document.file, file.name, environ).read((), included=False)
    include = document.values.pop("include", None) or []
    if not isinstance(include, list) or not all(isinstance(item, str) for item in include):
        document.refuse_file(("include",), "must be a list of file names, for example [queries.yaml]")
        return document
    seen = {document.file}
    for index, item in enumerate(include):
        trail = ("include", index)
        part = Path(os.path.normpath(document.file.parent / item))
        if part in seen:
            document.refuse(trail, f"{item!r} is included twice")
            continue
        seen.add(part)
        _YamlFile(document, part, item, environ).read(trail, included=True)
    return document


class _YamlFile:
    def __init__(self, document: Document, file: Path, name: str, environ: Mapping[str, str]) -> None:
        self._document = document
        self._file = file
        self._name = name  # as written, so that a variable in it can be hidden
        self._environ = environ
        self._open: set[int] = set()  # nodes being built, to detect an alias inside itself
        self._merging: set[int] = set()  # the same for maps whose keys are being collected

    def read(self, asked_at: Trail, included: bool) -> None:
        text = _text_of(self._document, self._file, self._name, asked_at)
        if text is None:
            return
        try:
            if refused := too_large(text):
                self._document.refuse_file((), refused[1], Place(self._name, refused[0]))
                return
            node = yaml.compose(text, Loader=_LOADER)
        except yaml.YAMLError as error:
            self._refuse_syntax(error, text)
            return
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            self._document.refuse_file((), "the file must be a map of keys and values", self._place(node))
            return
        for key, (key_node, value) in self._pairs(node, ()).items():
            self._read_section(key, key_node, value, included)

    def _refuse_syntax(self, error: yaml.YAMLError, text: str) -> None:
        mark = getattr(error, "problem_mark", None)
        # the error about a forbidden character has a position instead of a mark
        line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
        before = text.split("\n")[mark.line][: mark.column + 1] if mark and mark.line < text.count("\n") + 1 else ""
        hint = ""
        if before.endswith("${"):
            hint = "; inside { } and [ ] put ${NAME} in quotes if it is text, or else on a line of its own"
        self._document.refuse_file((), f"is not valid YAML: {problem}{hint}", Place(self._name, line))

    def _read_section(self, key: str, key_node: yaml.Node, value: yaml.Node, included: bool) -> None:
        document = self._document
        if included and key not in MERGED:
            text = f"{key!r} belongs in the workspace file; an included file may hold only {', '.join(MERGED)}"
            document.refuse((), text, self._place(key_node))
            return
        if key not in MERGED:
            document.values[key] = self._build(value, (key,), key_node)
            return
        document.places.setdefault((key,), self._place(key_node))
        if value.tag == f"{_TAG}null":
            return
        if key == "customers":
            self._read_customers(value)
        elif not isinstance(value, yaml.MappingNode):
            document.refuse_file((key,), "must be a map of names", self._place(value))
        else:
            section = document.values.setdefault(key, {})
            for name, (name_node, body) in self._pairs(value, (key,)).items():
                if name in section:
                    text = f"{name!r} is already defined at {document.places[(key, name)]}"
                    document.refuse((key, name), text, self._place(name_node))
                else:
                    section[name] = self._build(body, (key, name), name_node)

    def _read_customers(self, node: yaml.Node) -> None:
        document = self._document
        customers = document.values.setdefault("customers", [])
        if isinstance(node, yaml.SequenceNode):
            document.files.spans[str(self._file)] = (node.start_mark.index, node.end_mark.index)
            for item in node.value:
                customers.append(self._build(item, ("customers", len(customers)), item))
            return
        path = self._build(node, ("customers",), node)
        if isinstance(path, str) and path.endswith(".csv"):
            name = os.path.join(os.path.dirname(self._name), path)
            document.customer_files.append(self._file.parent / path)
            _read_customers_csv(document, self._file.parent / path, name)
        else:
            document.refuse_file(("customers",), "must be a list of customers, or the path of a .csv file")

    def _build(self, node: yaml.Node, trail: Trail, at: yaml.Node) -> Any:
        self._document.places[trail] = self._place(at)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, trail)
        if id(node) in self._open:
            self._document.refuse_unreadable(trail, "is an alias that contains itself")
            return None
        self._open.add(id(node))
        built: Any
        if isinstance(node, yaml.MappingNode):
            pairs = self._pairs(node, trail)
            built = {key: self._build(value, (*trail, key), key_node) for key, (key_node, value) in pairs.items()}
        else:
            built = [self._build(item, (*trail, index), item) for index, item in enumerate(node.value)]
        self._open.discard(id(node))
        return built

    def _pairs(self, node: yaml.MappingNode, trail: Trail) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return the keys of a map with their nodes. Keys of the map override those of a merged map (`<<: *base`)."""
        written: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        self._merging.add(id(node))
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                for base in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(base, yaml.MappingNode) and id(base) not in self._merging:
                        merged = self._pairs(base, trail) | merged
                    else:
                        self._document.refuse(trail, "'<<' merges other maps only", self._place(key))
            elif key.tag not in _TEXT_TAGS:
                shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "of several parts"
                self._document.refuse(trail, f"a key must be a string: put the key {shown} in quotes", self._place(key))
            elif key.value in written:
                first = self._place(written[key.value][0])
                text = f"the key {key.value!r} is written twice, first at {first}"
                self._document.refuse(trail, text, self._place(key))
            else:
                written[key.value] = (key, value)
        self._merging.discard(id(node))
        return merged | written

    def _scalar(self, node: yaml.ScalarNode, trail: Trail) -> Any:
        tag, text = node.tag, self._expand(node.value, trail)
        if text is None:
            return None
        if text != node.value and tag in _TEXT_TAGS and not node.style:
            tag = _PLAIN.resolve(yaml.ScalarNode, text, (True, False))
        if tag in _TEXT_TAGS:
            return text
        if tag not in _TYPED_TAGS:
            self._document.refuse_unreadable(trail, f"the tag {node.tag} is not understood here")
            return None
        try:
            value = _PLAIN.construct_object(yaml.ScalarNode(tag, text))
        except (
            ValueError,
            KeyError,
            OverflowError,
            AttributeError,
        ):  # PyYAML does not translate these
            self._document.remember_expansion(trail, text, node.value)
            kind = {"timestamp": "date"}.get(tag.removeprefix(_TAG), tag.removeprefix(_TAG))
            self._document.refuse_unreadable(trail, f"{text!r} looks like a {kind} but is none")
            return None
        if text != node.value:
            self._document.remember_expansion(trail, str(value), node.value)
        return value

    def _expand(self, text: str, trail: Trail) -> str | None:
        """Return the text with its variables expanded, or None if that was refused."""
        if "${" not in text:
            return text
        refusals: list[str] = []
        from_environment = False
        if any(found["name"] for found in _VARIABLE.finditer(text)):
            self._document.remember_variables(trail, text)

        def fill(found: re.Match[str]) -> str:
            nonlocal from_environment
            name, default = found["name"], found["default"]
            if found["literal"]:
                return "${"
            if found["broken"]:
                refusals.append("'${' must be ${NAME} or ${NAME:-default}; write $${ for the two characters themselves")
                return ""
            value = self._environ.get(name)
            if value is None and default is None:
                refusals.append(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
            # as in a shell, `:-` also replaces an empty value
            if not value and default is not None:
                return str(default)
            from_environment = True
            self._document.remember_expansion(trail, value or "", f"${{{name}}}")
            return value or ""

        expanded = _VARIABLE.sub(fill, text)
        if refusals:
            self._document.refuse_unreadable(trail, *refusals)
            return None
        if from_environment:
            self._document.remember_expansion(trail, expanded, text)
        return expanded

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._name, node.start_mark.line + 1)


def too_large(text: str) -> tuple[int, str] | None:
    """Return the line and the reason if a YAML text is nested too deeply or its aliases expand to too many values.
    Composing deeper text overflows the stack of the process, so the events of the parser are counted first."""
    depth = 0
    has_aliases = False
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line = event.start_mark.line + 1 if event.start_mark else 1
                return line, f"is nested too deeply: at most {MAX_DEPTH} maps and lists in each other"
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            has_aliases = True
    return _too_many_aliases(yaml.compose(text, Loader=_LOADER)) if has_aliases else None


def _too_many_aliases(root: yaml.Node) -> tuple[int, str] | None:
    """Count the values below every node with aliases expanded; each node is visited once."""
    values: dict[int, int] = {}
    nested: dict[int, int] = {}
    waiting = [(root, False)]
    while waiting:
        node, counted = waiting.pop()
        items = [] if isinstance(node, yaml.ScalarNode) else node.value
        children = [part for item in items for part in (item if isinstance(item, tuple) else (item,))]
        if not counted:
            if id(node) not in values:
                values[id(node)] = nested[id(node)] = 0  # an alias inside itself is not counted here
                waiting += [(node, True), *((child, False) for child in children)]
            continue
        values[id(node)] = 1 + sum(values[id(child)] for child in children)
        nested[id(node)] = 1 + max((nested[id(child)] for child in children), default=0)
        line = node.start_mark.line + 1
        if values[id(node)] > len(values) + MAX_ALIASED:
            return line, f"its aliases make more than {MAX_ALIASED:,} values: write less with *aliases"
        if nested[id(node)] > MAX_DEPTH + 1:
            return line, f"is nested too deeply by its aliases: at most {MAX_DEPTH} maps and lists in each other"
    return None


def _text_of(document: Document, file: Path, name: str, asked_at: Trail) -> str | None:
    try:
        return document.text_of(file)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        document.refuse_file((), "is not UTF-8 text", Place(name, line))
    except OSError as error:
        document.refuse_file(asked_at, f"{name!r} cannot be read: {error.strerror}")
    return None


def _read_customers_csv(document: Document, file: Path, name: str) -> None:
    """Append one customer per row; an empty cell means that the value is not set."""
    text = _text_of(document, file, name, ("customers",))
    if text is None or document.known is not None:
        return
    rows = _csv_rows(document, name, text)
    line, header = next(rows, (1, []))
    header = [cell.strip() for cell in header]
    unknown = [cell for cell in header if cell not in CUSTOMER_COLUMNS]
    if unknown or "id" not in header or len(set(header)) < len(header):
        found = f"found {','.join(header)!r}" if header else "the file is empty"
        text = f"the first line must name columns out of {','.join(CUSTOMER_COLUMNS)}, with id and each once; {found}"
        document.refuse_file((), text, Place(name, line))
        return
    customers = document.values.setdefault("customers", [])
    for line, cells in rows:
        trail: Trail = ("customers", len(customers))
        customer = {column: cell.strip() for column, cell in zip(header, cells, strict=False) if cell.strip()}
        for inner in (trail, *((*trail, column) for column in customer)):
            document.places[inner] = Place(name, line)
        if len(cells) != len(header):
            document.refuse(trail, f"has {len(cells)} cells, the first line names {len(header)} columns")
        customers.append(customer)


def _csv_rows(document: Document, name: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the line on which it starts."""
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        document.refuse_file((), f"is not valid CSV: {error}", Place(name, line))
