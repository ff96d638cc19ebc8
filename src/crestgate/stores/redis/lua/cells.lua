-- The counters of a batch. A cell is read on first use and written once, at the end.
--
-- Bytes of a counter, big-endian: version (1), algorithm (1), tick in microseconds (4), then as 8 bytes each the
-- count that shapes the state, the period in microseconds, time, a, b. A log continues with the index of its oldest
-- entry (4) and the number of stored entries (4); then the entries, tick (8) and cost (8).

-- A key with any other value is not changed. `foreign` is its layout version, or 0 for no counter at all.
local function foreign_cell(key, what)
  return {key = key, state = nil, foreign = what, changed = false}
end

local function read_cell(key, alg)
  local bytes
  if keeps_log(alg.kind) then
    bytes = redis.pcall('GETRANGE', key, 0, LOG_BYTES - 1) -- entries are read on demand
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
  if not constructors[kind] then return foreign_cell(key, 0) end
  local state = {time = time, a = a, b = b, log = nil}
  if keeps_log(kind) then
    local head, stored = unpack_from('>I4I4', bytes, STATE_BYTES + 1)
    state.log = log_entries().new(key, head, stored)
  end
  return {
    key = key, state = state, kind = kind, tick = tick, count = count, period_us = period_us, writer = nil,
    changed = false,
  }
end

-- The first step of TAKE, GIVE_BACK and RENEW: rebase a counter that is more than a period ahead of the clock.
local function rebase_if_ahead(cell, alg, now)
  local state = cell.state
  if state then
    local at = floor(now / cell.tick)
    if state.time > at and state.time - at > floor(cell.period_us / cell.tick) then slow_path().rebase(cell, at, alg) end
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
  if keeps_log(alg.kind) then
    local log = log_entries()
    state.log = log.new(cell.key, 0, 0)
    if a > 0 then log.append(state.log, time, a) end
    cell.whole = true
  end
  cell.state = state
end

-- Apply the state that a step with this `cost` returned.
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

-- Write the counter, to expire one second after it has fully recovered (plus `grace_ms` in virtual time).
local function write_cell(cell, now, grace_ms)
  local state = cell.state
  if not state then
    call('DEL', cell.key)
    return
  end
  local alg = cell.writer or slow_path().writer_of(cell)
  local recovered = implementation_of(cell.kind).frees(alg, state, now, 0) + instant(alg, state, now)
  local ttl = max(floor((recovered * alg.tick - now) / 1000), 0) + 1000 + grace_ms
  if state.log then
    slow_path().write_log(cell, ttl)
  else
    call('SET', cell.key, header(cell), 'PX', ttl)
  end
end
