-- Counters as this script finds and leaves them. A cell is read when it is first needed and written once, at the end.
--
-- Bytes of a counter, big-endian: version (1), algorithm (1), tick in microseconds (4), then as 8 bytes each the
-- count that shapes the state, the period in microseconds, time, a, b. A log goes on with the number of its oldest
-- entry (4), how many are stored (4), and the ticks to add to each (8); then the entries, tick (8) and cost (8).

local function read_cell(key)
  local cell = {key = key}
  local bytes = redis.call('GETRANGE', key, 0, LOG_BYTES - 1)
  if #bytes < STATE_BYTES then
    if #bytes > 0 then error('HEADGATE: ' .. key .. ' holds something that is not a counter', 0) end
    return cell
  end
  local version, kind, tick, count, period_us, time, a, b = struct.unpack('>BBI4i8i8i8i8i8', bytes)
  if version ~= STATE_VERSION or not steps[kind] then
    error('HEADGATE: ' .. key .. ' was written with layout version ' .. version .. ', and version 1 is read here', 0)
  end
  local state = {time = time, a = a, b = b}
  if kind == SLIDING_WINDOW_LOG then
    local head, stored, moved = struct.unpack('>I4I4i8', bytes, STATE_BYTES + 1)
    state.log = log.new(key, head, stored, moved)
  end
  cell.state = state
  cell.kind, cell.tick, cell.count, cell.period_us = kind, tick, count, period_us
  return cell
end

local function gcd(a, b)
  while b > 0 do a, b = b, mod(a, b) end
  return a
end

-- The algorithm under which a cell was written, as far as carrying it over to another needs it.
local function writer_of(cell)
  if not cell.writer then
    local alg = {kind = cell.kind, tick = cell.tick, period = floor(cell.period_us / cell.tick)}
    if cell.count > 0 then
      local divisor = gcd(cell.count, alg.period)
      alg.unit = alg.period / divisor
      alg.rate = cell.count / divisor
      alg.longest = floor(LARGEST / alg.rate)
    end
    cell.writer = alg
  end
  return cell.writer
end

local function same_shape(cell, alg)
  return cell.kind == alg.kind and cell.count == alg.count and cell.period_us == alg.period_us
    and cell.tick == alg.tick
end

local function changed(cell)
  cell.changed = true
end

local function forget(cell)
  cell.state, cell.writer = nil, nil
  cell.changed = true
end

local function replace(cell, alg, time, a, b)
  cell.state = {time = time, a = a, b = b}
  cell.kind, cell.tick, cell.count, cell.period_us = alg.kind, alg.tick, alg.count, alg.period_us
  cell.writer = alg
  if alg.kind == SLIDING_WINDOW_LOG then
    cell.state.log = log.new(cell.key, 0, 0, 0)
    if a > 0 then log.append(cell.state.log, time, a) end
    cell.whole = true
  end
  cell.changed = true
end

local function rebase(cell, time)
  local state = cell.state
  if state.log then
    state.log.moved = state.log.moved + time - state.time
    state.b = state.b + time - state.time
  end
  state.time = time
  cell.changed = true
end

local function put(cell, time, a, b, cost)
  local state = cell.state
  if state.log then
    if time < state.time then rebase(cell, time) end
    log.drop(state.log, state.a + cost - a)
    if cost > 0 then log.append(state.log, time, cost) end
  end
  state.time, state.a, state.b = time, a, b
  cell.changed = true
end

local function put_back(cell, time, a, b, tick, amount)
  local state = cell.state
  state.time, state.a, state.b = time, a, b
  if state.log then
    log.take_back(state.log, tick, amount)
    if a > 0 and log.charged(state.log, b) == 0 then state.b = log.freed(state.log, a) end
  end
  cell.changed = true
end

local function header(cell)
  local s = cell.state
  return struct.pack('>BBI4i8i8i8i8i8', STATE_VERSION, cell.kind, cell.tick, cell.count, cell.period_us, s.time, s.a, s.b)
end

local function write_log(cell, ttl)
  local l = cell.state.log
  local tail = {}
  if cell.whole or (l.head > 64 and l.head * 2 > l.stored) then -- written anew, without what is gone
    local last = log.last(l)
    for i = l.head, last do tail[#tail + 1] = struct.pack('>i8i8', log.entry(l, i)) end
    local lead = header(cell) .. struct.pack('>I4I4i8', 0, #tail, l.moved)
    redis.call('SET', cell.key, lead .. table.concat(tail), 'PX', ttl)
    return
  end
  for i, cost in pairs(l.edits) do
    if i >= l.head then
      redis.call('SETRANGE', cell.key, LOG_BYTES + i * ENTRY_BYTES + 8, struct.pack('>i8', cost))
    end
  end
  for i, kept in ipairs(l.tail) do tail[i] = struct.pack('>i8i8', kept[1], kept[2]) end
  if #tail > 0 then redis.call('APPEND', cell.key, table.concat(tail)) end
  local lead = header(cell) .. struct.pack('>I4I4i8', l.head, l.stored + #tail, l.moved)
  redis.call('SETRANGE', cell.key, 0, lead)
  redis.call('PEXPIRE', cell.key, ttl)
end

-- Leave the counter in Redis, to expire a second after it is as good as new (`linger` later in virtual time).
local function write_cell(cell, now, linger)
  if not cell.state then
    redis.call('DEL', cell.key)
    return
  end
  local alg = writer_of(cell)
  local lasts = steps[cell.kind].frees(alg, cell.state, now, 0) + instant(alg, cell.state, now)
  local ttl = max(floor((lasts * alg.tick - now) / 1000), 0) + 1000 + linger
  if cell.state.log then
    write_log(cell, ttl)
  else
    redis.call('SET', cell.key, header(cell), 'PX', ttl)
  end
end
