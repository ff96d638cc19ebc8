-- What is decided once: records, each the value of a key of its own (stores/keeping.py has their bytes).
--
-- A record is read when a batch first asks for it and written at the end, after the counters. Who asks is told of it
-- at the beginning of the answer: its length and its bytes, or NO_RECORD.

local NO_RECORD = 4294967295
local KEPT_MS = 300000

local function make_records(batch, now, linger)
  local records = {}
  local values, changed, told = {}, {}, {} -- values by the number of their key; false where there is none
  local group -- the requests that are being decided under one record

  -- In virtual time a record ends with when it expires by that (8 bytes): its key outlives it.
  local function read(key)
    local value = redis.pcall('GET', KEYS[key])
    if type(value) == 'table' then
      if not value.err:find('WRONGTYPE') then error(value.err, 0) end
      return '' -- which is no record, and says so to whoever reads it
    end
    if not value or linger == 0 or #value < 8 then return value end
    if unpack_from('>i8', value, #value - 7) <= now then return false end
    return value:sub(1, -9)
  end

  local function put(key, value)
    values[key] = value
    changed[#changed + 1] = key
  end

  -- One operation on a record; returns where the batch goes on: behind the group, if that was decided before.
  function records.ask(op, at, replies)
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
    if op == KEEP then
      put(key, given)
    elseif op == RELEASE then
      if value == given then put(key, false) end
    else
      told[#told + 1] = pack('>I4', value and #value or NO_RECORD) .. (value or '')
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

  function records.told()
    return table.concat(told)
  end

  function records.write()
    local expires = linger > 0 and pack('>i8', now + KEPT_MS * 1000) or ''
    for _, key in ipairs(changed) do
      if values[key] then
        call('SET', KEYS[key], values[key] .. expires, 'PX', KEPT_MS + linger)
      else
        call('DEL', KEYS[key])
      end
    end
  end

  return records
end
