"""Lua scripts that read in one step, so that no reader sees half of a write. Only the two about the audit log write.

All get the keys of layout.Keys, in their order.
"""

from __future__ import annotations

__all__ = ["APPEND_AUDIT_SCRIPT", "CHANGES", "FIND", "LIST", "PART", "PURGE_AUDIT_SCRIPT", "REPLACED"]

PART, REPLACED = 0, 2
"""Extents: the records that have changed; all records, because the reader's revision is not in this history. 1: all
records, for another reason."""

CHANGES = """
local since, seen = tonumber(ARGV[1]), ARGV[2]
local state = redis.call('HMGET', KEYS[1], 'layout', 'revision', 'nonce', 'compacted')
local revision = tonumber(state[2] or '0')
if revision == since and (seen == '' or seen == state[3]) then
  return {state[1], revision, state[3]}
end
local ours = seen == '' or tonumber(redis.call('ZSCORE', KEYS[6], seen) or '-1') == since
local stored = since >= tonumber(state[4] or '0')
if ours and since > 0 and since < revision and stored then
  local names = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. ARGV[1], '+inf')
  local found = {}
  for i, name in ipairs(names) do
    found[2 * i - 1] = name
    found[2 * i] = redis.call('HGET', KEYS[2], name)
  end
  return {state[1], revision, state[3], 0, found}
end
local extent = (since > revision or (not ours and stored)) and 2 or 1
return {state[1], revision, state[3], extent, redis.call('HGETALL', KEYS[2])}
"""
"""ARGV: the revision, and the nonce of its write, empty if unknown.

Returns the layout, the revision and its nonce; and if anything is new, its extent (see PART), and alternating names and
texts, with no text where a record was deleted."""

LIST = """
local found = {}
for i, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[7], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  found[2 * i - 1] = name
  found[2 * i] = redis.call('HGET', KEYS[2], name)
end
return {redis.call('HGET', KEYS[1], 'layout'), found}
"""
"""ARGV: the first and the last name, in the syntax of ZRANGEBYLEX, and the maximum count. Returns the layout, and
alternating names and texts."""

FIND = """
local types = {'hash', 'hash', 'hash', 'hash', 'zset', 'zset', 'zset', 'zset', 'stream'}
for i, key in ipairs(KEYS) do
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= types[i] then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ' and not a ' .. types[i])
  end
end
local state = redis.call('HMGET', KEYS[1], 'layout', 'revision', 'compacted', 'swept_us')
local most, edits = tonumber(ARGV[1]), tonumber(ARGV[2])
local last = tonumber(state[2] or '0') + 1 - most
local changed = redis.call('ZCARD', KEYS[5])
if changed > most then
  local at = changed - most - 1
  last = math.max(last, tonumber(redis.call('ZRANGE', KEYS[5], at, at, 'WITHSCORES')[2]))
end
local compacted, names = tonumber(state[3] or '0'), {}
if last > compacted then
  compacted, names = last, redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', last)
end
local records, versions, holders, held = {}, {}, {}, {}
for i = 1, edits do
  records[i] = redis.call('HGET', KEYS[2], ARGV[2 + i])
  versions[i] = redis.call('HGET', KEYS[3], ARGV[2 + i])
end
for i = 1, #ARGV - 2 - edits do
  holders[i] = redis.call('HGET', KEYS[4], ARGV[2 + edits + i])
  held[i] = holders[i] and redis.call('HGET', KEYS[2], holders[i])
end
local time = redis.call('TIME')
return {state[1], state[2], state[4], time[1], time[2], records, versions, holders, held, compacted, names}
"""
"""The state before a write. ARGV: how many changes are stored, how many edits there are, their names, and the
claims of those that have one.

Keys of another type are refused here: a transaction would skip the commands that fail, and execute the others."""

APPEND_AUDIT_SCRIPT = """
local kind = redis.call('TYPE', KEYS[9]).ok
if kind ~= 'none' and kind ~= 'stream' then
  return redis.error_reply('WRONGTYPE ' .. KEYS[9] .. ' is a ' .. kind .. ' and not a stream')
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local oldest = string.format('%.0f', (time[1] - tonumber(ARGV[1])) * 1000)
local words = (#ARGV - 2) / ARGV[2]
for entry = 0, ARGV[2] - 1 do
  local first = 3 + entry * words
  redis.call('XADD', KEYS[9], 'MINID', oldest, '*', 'at_us', now, unpack(ARGV, first, first + words - 1))
end
"""
"""ARGV: the retention in seconds, the number of entries, and the fields of each without its time."""

PURGE_AUDIT_SCRIPT = """
if redis.call('TYPE', KEYS[9]).ok == 'stream' then
  local oldest = string.format('%.0f', (redis.call('TIME')[1] - tonumber(ARGV[1])) * 1000)
  redis.call('XTRIM', KEYS[9], 'MINID', oldest)
end
"""
"""ARGV: the retention in seconds."""
