"""Parser of YAML and JSON into plain data and line numbers.

YAML is read as version 1.2: `true` and `false` are booleans, and `yes`, `no`, `on`, `off` are text;
numbers are decimal, and other notations (`010`, `1_000`, `0x1F`, `12:30`, `.inf`) and dates are text. Keys are always
text.

PyYAML's events are used, not its node trees: those take several times the time and memory, and expand aliases without
bounds. Nesting depth and alias expansion are bounded here.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from crestgate.errors import ConfigError, Problem, install_hint
from crestgate.loader.yaml_errors import ParserError, explain_error

__all__ = ["LineTree", "Parsed", "parse", "scalar"]

LineTree = Any  # a line; or (line, {key: LineTree}) or (line, [LineTree]): mypy has no recursive types in tuples
MAX_DEPTH = 64
MAX_ALIASED = 1_000_000
"""Values that aliases expand to, in total: more than hand-written files have, less than a YAML bomb."""
MERGE = "<<"
_TAG = "tag:yaml.org,2002:"
_NULL = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
"""An escaped surrogate pair of JSON; YAML has none."""
_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML does not allow, such as control characters and surrogates."""
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,39})")
_FRACTION = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


class Parsed(NamedTuple):
    """A parsed text. After a fatal error, `data` is None."""

    data: Any
    lines: LineTree
    problems: list[Problem]


class _Node(NamedTuple):
    value: Any
    below: Any
    """The lines of its members; None for a scalar."""
    size: int
    """Number of values in it, with aliases expanded."""


def parse(text: str, texts: re.Pattern[str] | None = None) -> Parsed:
    """The data of a text, its lines, and its problems (with lines, without the file).

    A value whose path matches `texts` is always text: `value: 1.10` is "1.10" there.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError(f"the package {error.name!r} is missing: {install_hint('config')}") from None

    if (invalid := _NOT_TEXT.search(text)) is not None:  # the messages of PyYAML's two parsers differ
        message = f"contains the character U+{ord(invalid[0]):04X}, which YAML does not allow: remove it"
        return Parsed(None, 1, [Problem("", message, None, text.count("\n", 0, invalid.start()) + 1)])
    if text.lstrip()[:1] in ("{", "["):
        text = _PAIR.sub(_join_surrogates, text)
    reader = _Reader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text), yaml, texts)
    try:
        data, lines = reader.document()
    except _FatalError as fatal:
        return Parsed(None, 1, [*reader.problems, fatal.problem])
    except yaml.MarkedYAMLError as error:
        since, at = error.context_mark, error.problem_mark
        position = (at.line, at.column) if at is not None else (0, 0)
        parser_error = ParserError(
            error.context or "", (since.line, since.column) if since else None, error.problem or "", position
        )
        line, message = explain_error(parser_error, _BREAK.split(text))
        # The last key is the field if it is on this line, and not one of several in brackets.
        field = reader.path if line == reader.line and "flow" not in parser_error.context else ""
        return Parsed(None, 1, [*reader.problems, Problem(field, message, None, line)])
    return Parsed(data, lines, reader.problems)


def scalar(text: str) -> str | int | float | bool | None:
    """The value of an unquoted text.

    >>> [scalar(text) for text in ("12", "-0.5", "1e3", "true", "off", "010", "12:30", "~")]
    [12, -0.5, 1000.0, True, 'off', '010', '12:30', None]
    """
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] in "0123456789-+.":
        if _WHOLE.fullmatch(text):
            return int(text)
        if _FRACTION.fullmatch(text):
            number = float(text)
            return number if math.isfinite(number) else text
    return text


def _join_surrogates(pair: re.Match[str]) -> str:
    high, low = int(pair[2], 16), int(pair[3], 16)
    return f"{pair[1]}{chr(0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)}"


class _FatalError(Exception):
    """An error after which the rest cannot be parsed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


class _Reader:
    """Reads the events of one text, once."""

    def __init__(self, parser: Any, yaml: Any, texts: re.Pattern[str] | None) -> None:
        self.next = parser.get_event
        self.texts = texts
        self.problems: list[Problem] = []
        self.anchors: dict[str, _Node | None] = {}
        """None while the anchored value is being read."""
        self.aliased = 0
        self.path, self.line = "", 0
        """Path and line of the last key."""
        self.Scalar, self.Alias = yaml.ScalarEvent, yaml.AliasEvent
        self.Mapping, self.MappingEnd = yaml.MappingStartEvent, yaml.MappingEndEvent
        self.Sequence, self.SequenceEnd = yaml.SequenceStartEvent, yaml.SequenceEndEvent
        self.StreamEnd = yaml.StreamEndEvent

    def document(self) -> tuple[Any, LineTree]:
        self.next()  # the stream's start
        if type(self.next()) is self.StreamEnd:
            return {}, 1
        event = self.next()
        line = _line(event)
        node = self.node(event, "", 1)
        self.next()  # the document's end
        following = self.next()
        if type(following) is not self.StreamEnd:
            message = "'---' starts a second document, and a file must have one: write it in a separate file"
            raise _FatalError(Problem("", message, None, _line(following)))
        return ({} if node.value is None else node.value), (line, node.below)

    def node(self, event: Any, at: str, depth: int) -> _Node:
        kind = type(event)
        if kind is self.Alias:
            return self.alias(event, at)
        anchor = event.anchor
        if anchor is not None:
            self.anchors[anchor] = None
        if kind is self.Scalar:
            node = _Node(self.scalar(event, at), None, 1)
        elif depth > MAX_DEPTH:
            message = f"is nested deeper than {MAX_DEPTH} levels: check that every bracket is closed"
            raise _FatalError(Problem("", message, None, _line(event)))
        elif kind is self.Mapping:
            self.check_tag(event, at, "map")
            node = self.mapping(at, depth)
        else:
            self.check_tag(event, at, "seq")
            node = self.sequence(at, depth)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def mapping(self, at: str, depth: int) -> _Node:
        data: dict[str, Any] = {}
        lines: dict[str, LineTree] = {}
        bases: list[_Node] = []
        size = 1
        event = self.next()
        while type(event) is not self.MappingEnd:
            line = event.start_mark.line + 1
            key = self.key(event, at, depth)
            merges = key == MERGE and event.implicit[0]
            path = f"{at}.{key}" if at else str(key)
            self.path, self.line = path, line
            event = self.next()
            if type(event) is self.Scalar and event.anchor is None:
                value, below = self.scalar(event, path), None
                size += 1
            else:
                value, below, more = self.node(event, path, depth + 1)
                size += more
            if key in lines:
                first = lines[key]
                first = first if isinstance(first, int) else first[0]
                message = f"is written twice, at line {first} and at line {line}: keep one of them"
                self.problems.append(Problem(path, message, None, line))
            elif merges:
                lines[MERGE] = line
                bases = self.bases(value, below, at, line)
            elif key is not None:
                data[key] = value
                lines[key] = line if below is None else (line, below)
            event = self.next()
        for node in bases:
            size += self.count(node.size, at, lines[MERGE])
            data = {**node.value, **data}
            lines = {**node.below, **lines}
        return _Node(data, lines, size)

    def sequence(self, at: str, depth: int) -> _Node:
        data: list[Any] = []
        lines: list[LineTree] = []
        size = 1
        event = self.next()
        while type(event) is not self.SequenceEnd:
            value, below, more = self.node(event, f"{at}[{len(data)}]", depth + 1)
            line = _line(event)
            size += more
            data.append(value)
            lines.append(line if below is None else (line, below))
            event = self.next()
        return _Node(data, lines, size)

    def key(self, event: Any, at: str, depth: int) -> str | None:
        """A key in its original spelling; None, and a problem, if it is not a scalar."""
        if type(event) is self.Scalar and (event.value or not event.implicit[0]):
            if event.anchor is not None:
                self.anchors[event.anchor] = _Node(event.value, None, 1)
            return str(event.value)
        node = self.node(event, at, depth + 1)
        if type(event) is self.Alias and isinstance(node.value, str | int | float):
            return str(node.value)
        kind = "nothing" if node.below is None else "a mapping" if isinstance(node.value, dict) else "a list"
        message = f"a key must be text, not {kind}: text that begins with '{{' or '[' must be in quotes"
        self.problems.append(Problem(at, message, None, _line(event)))
        return None

    def scalar(self, event: Any, at: str) -> Any:
        tag = event.tag
        if tag is None and event.implicit[0]:
            if self.texts is not None and self.texts.fullmatch(at) and event.value not in _NULL:
                return event.value
            return scalar(event.value)
        if tag in (None, "!", f"{_TAG}str"):
            return event.value
        value = scalar(event.value)
        kinds: dict[str, tuple[type, ...]] = {
            f"{_TAG}int": (int,),
            f"{_TAG}float": (float, int),
            f"{_TAG}bool": (bool,),
            f"{_TAG}null": (type(None),),
        }
        if isinstance(value, kinds.get(tag, ())):
            return value
        self.wrong_tag(event, at)
        return None

    def alias(self, event: Any, at: str) -> _Node:
        name, line = event.anchor, _line(event)
        if name not in self.anchors:
            message = f"there is no '&{name}' above for this alias: a value that begins with '*' must be in quotes, "
            self.problems.append(Problem(at, f"{message}'*{name}'", None, line))
            return _Node(None, None, 1)
        node = self.anchors[name]
        if node is None:
            message = f"'*{name}' is inside the value of '&{name}', which would never end: write the value itself"
            raise _FatalError(Problem(at, message, None, line))
        self.count(node.size, at, line)
        return node

    def bases(self, value: Any, below: Any, at: str, line: int) -> list[_Node]:
        """The mappings that a `<<` merges, in descending precedence."""
        values, lines = (value, below) if isinstance(value, list) else ([value], [(line, below)])
        if not values or not all(isinstance(item, dict) for item in values):
            message = "'<<' adds the fields of another mapping: write '<<: *name', or '<<: [*one, *other]'"
            self.problems.append(Problem(f"{at}.{MERGE}" if at else MERGE, message, None, line))
            return []
        return [_Node(item, node[1], len(item)) for item, node in zip(values, lines, strict=True)]

    def count(self, size: int, at: str, line: int) -> int:
        """A few lines of nested aliases can expand beyond any memory."""
        self.aliased += size
        if self.aliased > MAX_ALIASED:
            message = f"aliases expand to more than {MAX_ALIASED:,} values: write fewer of them"
            raise _FatalError(Problem(at, message, None, line))
        return size

    def check_tag(self, event: Any, at: str, kind: str) -> None:
        if event.tag not in (None, "!", _TAG + kind):
            self.wrong_tag(event, at)

    def wrong_tag(self, event: Any, at: str) -> None:
        tag = event.tag.replace(_TAG, "!!")
        reason = "does not match this value" if tag.startswith("!!") else "is not supported"
        message = f"the tag {tag!r} {reason}: remove it, or write the whole value in quotes"
        self.problems.append(Problem(at, message, None, _line(event)))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
