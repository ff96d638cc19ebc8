-- The entries of one sliding log, twin of core/state.py's ListLog, in the bytes after the counter's header.
--
-- Entries are (tick, cost) records, oldest first. They are read on demand, in chunks; changes are collected until the
-- end of the script: `head` (entries before it are dropped), `edits` (new costs of stored entries), `tail` (entries to
-- append).

local log_functions

local function log_entries()
  if log_functions then return log_functions end
  local log = {}

  function log.new(key, head, stored)
    return {key = key, head = head, stored = stored, edits = {}, tail = {}, chunks = {}}
  end

  -- The tick and the cost of an entry, by its index from the first stored one.
  function log.entry(l, i)
    if i >= l.stored then
      local appended = l.tail[i - l.stored + 1]
      return appended[1], appended[2]
    end
    local chunk = floor(i / CHUNK)
    local bytes = l.chunks[chunk]
    if not bytes then
      local from = LOG_BYTES + chunk * CHUNK * ENTRY_BYTES
      bytes = call('GETRANGE', l.key, from, from + CHUNK * ENTRY_BYTES - 1)
      l.chunks[chunk] = bytes
    end
    local tick, cost = unpack_from('>i8i8', bytes, (i - chunk * CHUNK) * ENTRY_BYTES + 1)
    return tick, l.edits[i] or cost
  end

  function log.set_cost(l, i, cost)
    if i >= l.stored then l.tail[i - l.stored + 1][2] = cost else l.edits[i] = cost end
  end

  function log.last(l)
    return l.stored + #l.tail - 1
  end

  function log.expired(l, cutoff)
    local total = 0
    for i = l.head, log.last(l) do
      local tick, cost = log.entry(l, i)
      if tick > cutoff then break end
      total = total + cost
    end
    return total
  end

  function log.freed(l, amount)
    local tick, cost = 0, 0
    for i = l.head, log.last(l) do
      tick, cost = log.entry(l, i)
      amount = amount - cost
      if amount <= 0 then break end
    end
    return tick
  end

  function log.charged(l, tick)
    local total = 0
    for i = log.last(l), l.head, -1 do
      local charged_at, cost = log.entry(l, i)
      if charged_at < tick then break end
      if charged_at == tick then total = total + cost end
    end
    return total
  end

  function log.append(l, tick, cost)
    local last = log.last(l)
    if last >= l.head then
      local newest, before = log.entry(l, last)
      if newest == tick then
        log.set_cost(l, last, before + cost)
        return
      end
    end
    l.tail[#l.tail + 1] = {tick, cost}
  end

  function log.drop(l, amount)
    while amount > 0 do
      local _, cost = log.entry(l, l.head)
      amount = amount - cost
      l.head = l.head + 1
    end
  end

  function log.take_back(l, tick, amount)
    for i = log.last(l), l.head, -1 do
      if amount == 0 then break end
      local charged_at, cost = log.entry(l, i)
      if charged_at == tick then
        local part = min(amount, cost)
        log.set_cost(l, i, cost - part)
        amount = amount - part
      end
    end
  end

  -- Move all entries by so many ticks; the caller has to write the whole log.
  function log.shift(l, ticks)
    local moved = {}
    for i = l.head, log.last(l) do
      local tick, cost = log.entry(l, i)
      moved[#moved + 1] = {tick + ticks, cost}
    end
    l.head, l.stored, l.edits, l.tail = 0, 0, {}, moved
  end

  log_functions = log
  return log
end
