"""Usage in Redis or Valkey. Layout version 1.

    {cg}:usage:60                    sorted set  the minutes that have counts: their start in seconds since the epoch
    {cg}:usage:60:1790000040         hash        of one minute: `a`, `d` or `s` (allowed, denied, shadowed) and the rule
    {cg}:usage:60:1790000040:top     hash        of one minute: `a` or `d` (allowed, denied) and the subject

and the same with 3600 for hours.

    {cg}:usage:last                  sorted set  counters, by a digest: when each was last used, in microseconds

All keys begin with the tag of the prefix, so that a cluster keeps them in one slot.

One script adds to a minute and to its hour, so an `add` is atomic. Every key has a time to live, which each `add`
restarts: without sweeps, keys expire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from crestgate.databases.names import quoted
from crestgate.databases.redis_client import open_client
from crestgate.databases.shared_redis_client import OpenClient, SharedRedisClient
from crestgate.errors import StoreClosedError
from crestgate.history.names import decode_name, encode_name, merge_counts
from crestgate.history.port import (
    MAX_DENIED,
    MAX_SUBJECTS,
    MAX_USES,
    Order,
    Step,
    SubjectPoint,
    SubjectUsage,
    TopRules,
    UsagePoint,
)
from crestgate.history.spans import (
    HOUR,
    MINUTE,
    RETENTION_SECONDS,
    SECONDS,
    Span,
    begin_us,
    check_points,
    covering_spans,
    expired_before_us,
)
from crestgate.runtime.url_options import Options

__all__ = ["RedisHistory", "open_redis_history"]

TIMEOUT_MS = 5000
POOL_SIZE = 2
BATCH_SIZE = 200
"""Minutes or hours that are read, or deleted, in one round trip."""
LARGE_HASHES = 10
"""The same, where each may have thousands of rules."""
_US = 1_000_000
_ADD = """
local at = 1
local function read()
  at = at + 1
  return ARGV[at - 1]
end
local max_subjects, max_denied, spans = tonumber(read()), tonumber(read()), {}
for i = 1, 2 do
  spans[i] = {second = read(), ttl = read(), index = KEYS[3 * i - 2], rules = KEYS[3 * i - 1], top = KEYS[3 * i]}
end
local function add(field, fields)
  for _ = 1, tonumber(read()) do
    local name = read()
    for letter in string.gmatch(fields, '.') do
      local number = read()
      if number ~= '0' then
        for _, span in ipairs(spans) do redis.call('HINCRBY', span[field], letter .. name, number) end
      end
    end
  end
end
add('rules', 'ads')
add('top', 'ad')
for _, span in ipairs(spans) do
  if redis.call('HLEN', span.top) > max_subjects then
    local fields, counts, denied, names, kept = redis.call('HGETALL', span.top), {}, {}, {}, {}
    for i = 1, #fields, 2 do
      local name, count = string.sub(fields[i], 2), tonumber(fields[i + 1])
      if not counts[name] then names[#names + 1] = name end
      counts[name] = (counts[name] or 0) + count
      if string.sub(fields[i], 1, 1) == 'd' then denied[name] = count end
    end
    local function keep(numbers, number)
      table.sort(names, function(a, b)
        local of_a, of_b = numbers[a] or 0, numbers[b] or 0
        if of_a ~= of_b then return of_a > of_b end
        return a < b
      end)
      for i = 1, math.min(number, #names) do
        if numbers[names[i]] then kept[names[i]] = true end
      end
    end
    keep(counts, max_subjects)
    keep(denied, max_denied)
    for _, name in ipairs(names) do
      if not kept[name] then redis.call('HDEL', span.top, 'a' .. name, 'd' .. name) end
    end
  end
  redis.call('ZADD', span.index, span.second, span.second)
  redis.call('EXPIRE', span.index, span.ttl)
  redis.call('EXPIRE', span.rules, span.ttl)
  redis.call('EXPIRE', span.top, span.ttl)
end
"""

_ADD_USES = """
for i = 3, #ARGV, 2 do
  local known = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if not known or tonumber(known) < tonumber(ARGV[i + 1]) then redis.call('ZADD', KEYS[1], ARGV[i + 1], ARGV[i]) end
end
for _, oldest in ipairs(redis.call('ZRANGE', KEYS[1], 0, redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[1]) - 1)) do
  redis.call('ZREM', KEYS[1], oldest)
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
"""


def open_redis_history(options: Options) -> RedisHistory:
    """The history of a URL. Connects immediately."""
    timeout = options.timeout_ms(TIMEOUT_MS) / 1000
    prefix, pool_size = options.prefix(), options.pool_size() or POOL_SIZE
    return RedisHistory(lambda: open_client(options, timeout), prefix=prefix, timeout=timeout, pool_size=pool_size)


class RedisHistory:
    """The usage under `prefix`."""

    def __init__(self, open_client: OpenClient, *, prefix: str, timeout: float, pool_size: int = POOL_SIZE) -> None:
        self.root = f"{{{quoted(prefix)}}}:usage"
        self._redis = SharedRedisClient(open_client, timeout=timeout, max_connections=pool_size)

    def add(
        self, minute_us: int, rules: Mapping[str, tuple[int, int, int]], subjects: Mapping[str, tuple[int, int]]
    ) -> None:
        self._check_open()
        keys: list[str] = []
        arguments: list[int | bytes] = [MAX_SUBJECTS, MAX_DENIED]
        for seconds in (MINUTE, HOUR):
            second = begin_us(minute_us, seconds) // _US
            keys += [self._index(seconds), self._key(seconds, second), self._top(seconds, second)]
            arguments += [second, RETENTION_SECONDS[seconds]]
        empty = len(arguments) + 2
        for counts in (merge_counts(rules), merge_counts(subjects)):
            arguments.append(len(counts))
            for name, numbers in counts.items():
                arguments += [name, *numbers]
        if len(arguments) > empty:
            with self._redis.client(writes=True) as client:
                client.eval(_ADD, len(keys), *keys, *arguments)

    def usage(self, since_us: int, until_us: int, step: Step, rule: str | None = None) -> list[UsagePoint]:
        self._check_open()
        seconds = SECONDS[step]
        span = Span(seconds, begin_us(since_us, seconds), until_us)
        points: list[UsagePoint] = []
        for point in self._points(span, None if rule is None else [encode_name(rule)]):
            points.append(point)
            check_points(len(points))
        return points

    def top_rules(self, since_us: int, until_us: int, step: Step, limit: int) -> TopRules:
        self._check_open()
        seconds = SECONDS[step]
        span = Span(seconds, begin_us(since_us, seconds), until_us)
        totals: list[UsagePoint] = []
        rules: dict[bytes, list[int]] = {}
        for second, fields in self._hashes(span, self._key, batch_size=LARGE_HASHES):
            sums = [0, 0, 0]
            for name, counts in _counts(fields, b"ads").items():
                known = rules.setdefault(name, [0, 0, 0])
                for index, count in enumerate(counts):
                    known[index] += count
                    sums[index] += count
            totals.append(UsagePoint(second * _US, "", *sums))
        top = sorted(rules, key=lambda name: (-rules[name][1], -rules[name][0], name))[: max(limit, 0)]
        return TopRules(totals, list(self._points(span, top)) if top else [], len(rules))

    def top(self, since_us: int, until_us: int, limit: int = 10, by: Order = "requests") -> list[SubjectUsage]:
        self._check_open()
        sums: dict[bytes, list[int]] = {}
        for span in covering_spans(since_us, until_us):
            for _, fields in self._hashes(span, self._top):
                for name, (allowed, denied) in _counts(fields, b"ad").items():
                    known = sums.setdefault(name, [0, 0])
                    known[0] += allowed
                    known[1] += denied
        if by == "denied":
            first = sorted((item for item in sums.items() if item[1][1]), key=lambda item: (-item[1][1], item[0]))
        else:
            first = sorted(sums.items(), key=lambda item: (-sum(item[1]), item[0]))
        return [SubjectUsage(decode_name(name), *counts) for name, counts in first[: max(limit, 0)]]

    def subject(self, since_us: int, until_us: int, step: Step, subject: str) -> list[SubjectPoint]:
        self._check_open()
        seconds = SECONDS[step]
        name = encode_name(subject)
        points: list[SubjectPoint] = []
        for second, fields in self._hashes(Span(seconds, begin_us(since_us, seconds), until_us), self._top, [name]):
            for allowed, denied in _counts(fields, b"ad").values():
                points.append(SubjectPoint(second * _US, allowed, denied))
        check_points(len(points))
        return points

    def add_uses(self, uses: Mapping[str, int]) -> None:
        self._check_open()
        arguments: list[int | str] = [MAX_USES, RETENTION_SECONDS[MINUTE]]
        for name, at_us in uses.items():
            arguments += [name, at_us]
        if uses:
            with self._redis.client(writes=True) as client:
                client.eval(_ADD_USES, 1, f"{self.root}:last", *arguments)

    def last_uses(self, names: Sequence[str]) -> dict[str, int]:
        self._check_open()
        times: dict[str, int] = {}
        for start in range(0, len(names), BATCH_SIZE):
            batch = names[start : start + BATCH_SIZE]
            with self._redis.client() as client:
                pipeline = client.pipeline(transaction=False)
                for name in batch:
                    pipeline.zscore(f"{self.root}:last", name)
                scores = pipeline.execute()
            times.update((name, int(score)) for name, score in zip(batch, scores, strict=True) if score is not None)
        return times

    def sweep(self, now_us: int) -> None:
        self._check_open()
        with self._redis.client(writes=True) as client:
            client.zremrangebyscore(f"{self.root}:last", "-inf", f"({expired_before_us(now_us, MINUTE)}")
        for seconds in (MINUTE, HOUR):
            while old := self._seconds(Span(seconds, -(2**62), expired_before_us(now_us, seconds)), BATCH_SIZE):
                keys = [key(seconds, second) for second in old for key in (self._key, self._top)]
                with self._redis.client(writes=True) as client:
                    client.delete(*keys)
                    client.zrem(self._index(seconds), *old)

    def close(self) -> None:
        self._redis.close()

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._redis.closed:
            raise StoreClosedError(f"{self._redis.address}: this history was closed; open it again")

    def _points(self, span: Span, rules: Sequence[bytes] | None) -> Iterator[UsagePoint]:
        """Of all rules, or of these; by time and rule."""
        for second, fields in self._hashes(span, self._key, rules):
            counts = _counts(fields, b"ads")
            for name in sorted(counts):
                yield UsagePoint(second * _US, decode_name(name), *counts[name])

    def _hashes(
        self, span: Span, key: Any, names: Sequence[bytes] | None = None, batch_size: int = BATCH_SIZE
    ) -> Iterator[tuple[int, Sequence[tuple[bytes, bytes]]]]:
        """Each minute or hour that has counts, and its fields: all, or those of these names."""
        seconds = self._seconds(span)
        wanted = None if names is None else [letter + name for name in names for letter in (b"a", b"d", b"s")]
        for start in range(0, len(seconds), batch_size):
            batch = seconds[start : start + batch_size]
            with self._redis.client() as client:
                pipeline = client.pipeline(transaction=False)
                for second in batch:
                    if wanted is None:
                        pipeline.hgetall(key(span.seconds, second))
                    else:
                        pipeline.hmget(key(span.seconds, second), *wanted)
                replies = pipeline.execute()
            for second, reply in zip(batch, replies, strict=True):
                if wanted is None:
                    yield second, list(reply.items())
                else:
                    values = zip(wanted, reply, strict=True)
                    yield second, [(field, value) for field, value in values if value is not None]

    def _seconds(self, span: Span, limit: int | None = None) -> list[int]:
        """The minutes or hours that have counts in this time."""
        first, until = span.first_us // _US, -(-span.until_us // _US)
        with self._redis.client() as client:
            members = client.zrangebyscore(
                self._index(span.seconds), first, f"({until}", None if limit is None else 0, limit
            )
        return [int(second) for second in members]

    def _index(self, seconds: int) -> str:
        return f"{self.root}:{seconds}"

    def _key(self, seconds: int, second: int) -> str:
        return f"{self.root}:{seconds}:{second}"

    def _top(self, seconds: int, second: int) -> str:
        return f"{self.root}:{seconds}:{second}:top"


def _counts(fields: Iterable[tuple[bytes, bytes]], letters: bytes) -> dict[bytes, list[int]]:
    """The numbers of each name, in the order of the letters."""
    counts: dict[bytes, list[int]] = {}
    for field, value in fields:
        at = letters.find(field[:1])
        if at >= 0:
            counts.setdefault(field[1:], [0] * len(letters))[at] = int(value)
    return counts
