-- Idempotency records, each the value of a key of its own (encoded by stores/idempotency_codec.py).
--
-- A record is read on first use and written at the end, after the counters. The beginning of the reply has the stored
-- value of each group and each CLAIM: its length and its bytes, or NO_RECORD.

local NO_RECORD = 4294967295
local RECORD_TTL_MS = 300000

local function make_records(batch, now, grace_ms)
  local records = {}
  local values, changed, stored_values = {}, {}, {} -- values by key index; false if there is none
  local group -- the open group of requests

  -- In virtual time a record ends with its virtual expiry (8 bytes), since its key lives longer.
  local function read(key)
    local value = redis.pcall('GET', KEYS[key])
    if type(value) == 'table' then
      if not value.err:find('WRONGTYPE') then error(value.err, 0) end
      return '' -- not a valid record
    end
    if not value or grace_ms == 0 or #value < 8 then return value end
    if unpack_from('>i8', value, #value - 7) <= now then return false end
    return value:sub(1, -9)
  end

  local function put(key, value)
    values[key] = value
    changed[#changed + 1] = key
  end

  -- One operation on a record; returns the position to continue at: after the group, if it has a stored result.
  function records.apply(op, at, replies)
    if op == END then
      local decided = true
      for i = group.first, #replies do decided = decided and replies[i]:byte() ~= FOREIGN end
      if decided then put(group.key, group.head .. pack('>i8', now) .. table.concat(replies, '', group.first)) end
      return at
    end
    local key, size, skipped
    key, size, skipped, at = unpack_from('>I2I4I4', batch, at)
    local given = batch:sub(at, at + size - 1)
    at = at + size
    local value = values[key]
    if value == nil then
      value = read(key)
      values[key] = value
    end
    if op == SAVE then
      put(key, given)
    elseif op == RELEASE then
      if value == given then put(key, false) end
    else
      stored_values[#stored_values + 1] = pack('>I4', value and #value or NO_RECORD) .. (value or '')
      if value then
        at = at + skipped
      elseif op == CLAIM then
        put(key, given)
      else
        group = {key = key, head = given, first = #replies + 1}
      end
    end
    return at
  end

  function records.encode_stored()
    return table.concat(stored_values)
  end

  function records.write()
    local expires = grace_ms > 0 and pack('>i8', now + RECORD_TTL_MS * 1000) or ''
    for _, key in ipairs(changed) do
      if values[key] then
        call('SET', KEYS[key], values[key] .. expires, 'PX', RECORD_TTL_MS + grace_ms)
      else
        call('DEL', KEYS[key])
      end
    end
  end

  return records
end
