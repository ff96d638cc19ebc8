"""From the text of a YAML or JSON file to plain data, and the line of every value in it.

YAML is read with the habits of version 1.2: `true` and `false` are booleans, and `yes`, `no`, `on`, `off` are text;
numbers are decimal, and what looks like one but is not (`010`, `1_000`, `0x1F`, `12:30`, `.inf`) is the text that was
written, as are dates. Keys are always the text that was written.

The parser's events are read one by one, not its trees: those take several times as long and as much memory, and
follow an alias wherever it leads. How deep values nest and how much aliases repeat is bounded.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from headgate.errors import ConfigError, Problem
from headgate.reading.syntax import Complaint, plain_words

__all__ = ["Parsed", "Place", "parse", "scalar"]

Place = Any  # a line; or (line, {key: Place}) or (line, [Place]): types that contain themselves help nobody here
MOST_DEPTH = 64
MOST_REPEATED = 1_000_000
"""Values that aliases may stand for, all in all: more than files by people have, less than a trap has."""
MERGE = "<<"
_TAG = "tag:yaml.org,2002:"
_NULL = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
"""A character beyond 16 bits as JSON escapes it, in two halves; YAML has no halves."""
_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML does not allow, among them those that stand for bytes that are no UTF-8."""
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,39})")
_FRACTION = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


class Parsed(NamedTuple):
    """What a text says. With a mistake that ends the reading, `data` is None."""

    data: Any
    place: Place
    problems: list[Problem]


class _Node(NamedTuple):
    value: Any
    below: Any
    """The places of what it holds; None for a scalar."""
    size: int
    """How many values it is, with all that aliases in it stand for."""


def parse(text: str, texts: re.Pattern[str] | None = None) -> Parsed:
    """The data of a text and where it is written; and the problems, with the lines but without the file.

    What stands at a way that matches `texts` is text whatever it looks like: `value: 1.10` is just these signs there.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError(f"the package {error.name!r} is missing: pip install 'headgate[config]'") from None

    if (odd := _NOT_TEXT.search(text)) is not None:  # the parsers' own complaints are of several kinds
        message = f"holds the character U+{ord(odd[0]):04X}, which no YAML may have: take it away"
        return Parsed(None, 1, [Problem("", message, None, text.count("\n", 0, odd.start()) + 1)])
    if text.lstrip()[:1] in ("{", "["):
        text = _PAIR.sub(_joined, text)
    reader = _Reader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text), yaml, texts)
    try:
        data, place = reader.document()
    except _Ended as ended:
        return Parsed(None, 1, [*reader.problems, ended.problem])
    except yaml.MarkedYAMLError as error:
        since, at = error.context_mark, error.problem_mark
        where = (at.line, at.column) if at is not None else (0, 0)
        complaint = Complaint(
            error.context or "", (since.line, since.column) if since else None, error.problem or "", where
        )
        line, words = plain_words(complaint, _BREAK.split(text))
        # The last key is the one that is meant if it stands on this line, and is not one of several in brackets.
        field = reader.way if line == reader.line and "flow" not in complaint.doing else ""
        return Parsed(None, 1, [*reader.problems, Problem(field, words, None, line)])
    return Parsed(data, place, reader.problems)


def scalar(text: str) -> str | int | float | bool | None:
    """What an unquoted text means.

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


def _joined(pair: re.Match[str]) -> str:
    high, low = int(pair[2], 16), int(pair[3], 16)
    return f"{pair[1]}{chr(0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)}"


class _Ended(Exception):  # noqa: N818 - a signal between functions of this file
    """A mistake after which there is nothing to read."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


class _Reader:
    """Walks the events of one text, once."""

    def __init__(self, parser: Any, yaml: Any, texts: re.Pattern[str] | None) -> None:
        self.next = parser.get_event
        self.texts = texts
        self.problems: list[Problem] = []
        self.anchors: dict[str, _Node | None] = {}
        """What was named; None while it is being read."""
        self.repeated = 0
        self.way, self.line = "", 0
        """The last key, and its line."""
        self.Scalar, self.Alias = yaml.ScalarEvent, yaml.AliasEvent
        self.Mapping, self.MappingEnd = yaml.MappingStartEvent, yaml.MappingEndEvent
        self.Sequence, self.SequenceEnd = yaml.SequenceStartEvent, yaml.SequenceEndEvent
        self.StreamEnd = yaml.StreamEndEvent

    def document(self) -> tuple[Any, Place]:
        self.next()  # the stream's start
        if type(self.next()) is self.StreamEnd:
            return {}, 1
        event = self.next()
        line = _line(event)
        node = self.node(event, "", 1)
        self.next()  # the document's end
        following = self.next()
        if type(following) is not self.StreamEnd:
            message = "'---' begins a second document, and a file has one: put it in a file of its own"
            raise _Ended(Problem("", message, None, _line(following)))
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
        elif depth > MOST_DEPTH:
            message = f"is nested deeper than {MOST_DEPTH} levels: see that every bracket is closed"
            raise _Ended(Problem("", message, None, _line(event)))
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
        places: dict[str, Place] = {}
        merged: list[_Node] = []
        size = 1
        event = self.next()
        while type(event) is not self.MappingEnd:
            line = event.start_mark.line + 1
            key = self.key(event, at, depth)
            merges = key == MERGE and event.implicit[0]
            way = f"{at}.{key}" if at else str(key)
            self.way, self.line = way, line
            event = self.next()
            if type(event) is self.Scalar and event.anchor is None:
                value, below = self.scalar(event, way), None
                size += 1
            else:
                value, below, more = self.node(event, way, depth + 1)
                size += more
            if key in places:
                first = places[key]
                first = first if isinstance(first, int) else first[0]
                message = f"is written twice, at line {first} and at line {line}: keep one of them"
                self.problems.append(Problem(way, message, None, line))
            elif merges:
                places[MERGE] = line
                merged = self.merged(value, below, at, line)
            elif key is not None:
                data[key] = value
                places[key] = line if below is None else (line, below)
            event = self.next()
        for node in merged:
            size += self.count(node.size, at, places[MERGE])
            data = {**node.value, **data}
            places = {**node.below, **places}
        return _Node(data, places, size)

    def sequence(self, at: str, depth: int) -> _Node:
        data: list[Any] = []
        places: list[Place] = []
        size = 1
        event = self.next()
        while type(event) is not self.SequenceEnd:
            value, below, more = self.node(event, f"{at}[{len(data)}]", depth + 1)
            line = _line(event)
            size += more
            data.append(value)
            places.append(line if below is None else (line, below))
            event = self.next()
        return _Node(data, places, size)

    def key(self, event: Any, at: str, depth: int) -> str | None:
        """A key as it was written; None for what cannot be one, which is told."""
        if type(event) is self.Scalar and (event.value or not event.implicit[0]):
            if event.anchor is not None:
                self.anchors[event.anchor] = _Node(event.value, None, 1)
            return str(event.value)
        found = self.node(event, at, depth + 1)
        if type(event) is self.Alias and isinstance(found.value, str | int | float):
            return str(found.value)
        what = "nothing" if found.below is None else "a mapping" if isinstance(found.value, dict) else "a list"
        message = f"a key must be text, not {what}: text that begins with '{{' or '[' is written in quotes"
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
            message = f"'*{name}' stands inside of what '&{name}' names, without an end: write the value itself"
            raise _Ended(Problem(at, message, None, line))
        self.count(node.size, at, line)
        return node

    def merged(self, value: Any, below: Any, at: str, line: int) -> list[_Node]:
        """The mappings that a `<<` adds, the strongest first."""
        values, places = (value, below) if isinstance(value, list) else ([value], [(line, below)])
        if not values or not all(isinstance(item, dict) for item in values):
            message = "'<<' adds the fields of another mapping: write '<<: *name', or '<<: [*one, *other]'"
            self.problems.append(Problem(f"{at}.{MERGE}" if at else MERGE, message, None, line))
            return []
        return [_Node(item, place[1], len(item)) for item, place in zip(values, places, strict=True)]

    def count(self, size: int, at: str, line: int) -> int:
        """Aliases are cheap to write and dear to follow: a few lines can stand for more than any memory holds."""
        self.repeated += size
        if self.repeated > MOST_REPEATED:
            message = f"aliases stand for more than {MOST_REPEATED:,} values by now: write fewer of them"
            raise _Ended(Problem(at, message, None, line))
        return size

    def check_tag(self, event: Any, at: str, kind: str) -> None:
        if event.tag not in (None, "!", _TAG + kind):
            self.wrong_tag(event, at)

    def wrong_tag(self, event: Any, at: str) -> None:
        tag = event.tag.replace(_TAG, "!!")
        why = "does not go with this value" if tag.startswith("!!") else "means nothing here"
        message = f"the tag {tag!r} {why}: take it away, or write all of the value in quotes"
        self.problems.append(Problem(at, message, None, _line(event)))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
