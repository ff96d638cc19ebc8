-- Counters as this script finds and leaves them. A cell is read when it is first needed and written once, at the end.
--
-- Bytes of a counter, big-endian: version (1), algorithm (1), tick in microseconds (4), then as 8 bytes each the
-- count that shapes the state, the period in microseconds, time, a, b. A log goes on with the number of its oldest
-- entry (4) and how many are stored (4); then the entries, tick (8) and cost (8).

-- A key that holds something else is left alone. `foreign` says what: a layout version, or 0 for no counter at all.
local function foreign_cell(key, what)
  return {key = key, state = nil, foreign = what, changed = false}
end

local function read_cell(key, alg)
  local bytes
  if alg.kind == SLIDING_WINDOW_LOG then
    bytes = redis.pcall('GETRANGE', key, 0, LOG_BYTES - 1) -- the entries are read when they are asked for
  else
    bytes = redis.pcall('GET', key) or ''
  end
  if type(bytes) == 'table' then
    if not bytes.err:find('WRONGTYPE') then error(bytes.err, 0) end
    return foreign_cell(key, 0)
  end
  if #bytes < STATE_BYTES then
    if #bytes > 0 then return foreign_cell(key, 0) end
    return {key = key, state = nil, kind = 0, tick = 0, count = 0, period_us = 0, writer = nil, changed = false}
  end
  local version, kind, tick, count, period_us, time, a, b = unpack_from('>BBI4i8i8i8i8i8', bytes)
  if version ~= STATE_VERSION then return foreign_cell(key, version) end
  if not makers[kind] then return foreign_cell(key, 0) end
  local state = {time = time, a = a, b = b, log = nil}
  if kind == SLIDING_WINDOW_LOG then
    local head, stored = unpack_from('>I4I4', bytes, STATE_BYTES + 1)
    state.log = log_entries().new(key, head, stored)
  end
  return {
    key = key, state = state, kind = kind, tick = tick, count = count, period_us = period_us, writer = nil,
    changed = false,
  }
end

-- What a TAKE and a GIVE_BACK do first: a counter that is far ahead of the clock is brought back to it.
local function catch_up(cell, now)
  local state = cell.state
  if state then
    local at = floor(now / cell.tick)
    if state.time > at and state.time - at > floor(cell.period_us / cell.tick) then rare().rebase(cell, at) end
  end
end

local function same_shape(cell, alg)
  return cell.kind == alg.kind and cell.count == alg.count and cell.period_us == alg.period_us
    and cell.tick == alg.tick
end

local function replace(cell, alg, time, a, b)
  local state = {time = time, a = a, b = b, log = nil}
  cell.kind, cell.tick, cell.count, cell.period_us = alg.kind, alg.tick, alg.count, alg.period_us
  cell.writer, cell.changed = alg, true
  if alg.kind == SLIDING_WINDOW_LOG then
    local log = log_entries()
    state.log = log.new(cell.key, 0, 0)
    if a > 0 then log.append(state.log, time, a) end
    cell.whole = true
  end
  cell.state = state
end

-- Write what a step that charged `cost` returned.
local function put(cell, time, a, b, cost)
  local state = cell.state
  if state.log then
    local log = log_entries()
    log.drop(state.log, state.a + cost - a)
    log.append(state.log, time, cost)
  end
  state.time, state.a, state.b = time, a, b
  cell.changed = true
end

local function header(cell)
  local state = cell.state
  return pack('>BBI4i8i8i8i8i8', STATE_VERSION, cell.kind, cell.tick, cell.count, cell.period_us,
    state.time, state.a, state.b)
end

-- Leave the counter in Redis, to expire a second after it is as good as new (`linger` later in virtual time).
local function write_cell(cell, now, linger)
  local state = cell.state
  if not state then
    call('DEL', cell.key)
    return
  end
  local alg = cell.writer or rare().writer_of(cell)
  local lasts = twin_of(cell.kind).frees(alg, state, now, 0) + instant(alg, state, now)
  local ttl = max(floor((lasts * alg.tick - now) / 1000), 0) + 1000 + linger
  if state.log then
    rare().write_log(cell, ttl)
  else
    call('SET', cell.key, header(cell), 'PX', ttl)
  end
end
