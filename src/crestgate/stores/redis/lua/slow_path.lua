-- What few batches need: counters written by another limit, charges, give-backs, renewals, clock jumps, and writing a
-- log.

local function make_slow_path()
  local path = {}

  local function gcd(a, b)
    while b > 0 do a, b = b, mod(a, b) end
    return a
  end

  -- The limit that wrote a cell, as far as it is needed to carry its use over to another limit.
  function path.writer_of(cell)
    if not cell.writer then
      local alg = {kind = cell.kind, tick = cell.tick, period = floor(cell.period_us / cell.tick)}
      if cell.count > 0 then
        local divisor = gcd(cell.count, alg.period)
        alg.unit = alg.period / divisor
        alg.rate = cell.count / divisor
      end
      cell.writer = alg
    end
    return cell.writer
  end

  local function fresh(alg, now, units)
    return alg.implementation.charge(alg, EMPTY, now, units)
  end

  -- A step on a counter that another limit wrote: the whole units used under that limit count as charged now. Waits
  -- of the old limit are returned with its instant and tick.
  function path.carry(cell, alg, now, cost)
    local writer, state = path.writer_of(cell), cell.state
    local old = implementation_of(cell.kind)
    local units = old.used(writer, state, now)
    local seen = instant(writer, state, now)
    if cost > 0 and units + cost > alg.capacity then
      return false, state.time, state.a, state.b, max(alg.capacity - units, 0),
        old.frees(writer, state, now, alg.capacity - cost), old.frees(writer, state, now, 0), seen, writer.tick
    end
    local time, a, b = fresh(alg, now, units + cost)
    local queued = 0
    if alg.kind == LEAKY_BUCKET then queued = select(2, fresh(alg, now, units)) end
    local left = max(alg.capacity - units - cost, 0)
    if cost == 0 then
      return true, time, a, b, left, queued, old.frees(writer, state, now, 0), seen, writer.tick
    end
    local new = {time = time, a = a, b = b}
    if keeps_log(alg.kind) then
      local log = log_entries()
      new.log = log.new(cell.key, 0, 0)
      log.append(new.log, time, a)
    end
    return true, time, a, b, left, queued, alg.implementation.frees(alg, new, now, 0)
  end

  -- Move a counter that is more than a period ahead of the clock.
  function path.rebase(cell, at, alg)
    local state = cell.state
    if state.log then
      log_entries().shift(state.log, at - state.time)
      cell.whole = true
      state.b = state.b + (at - state.time)
    end
    state.time = at
    if cell.kind == CALENDAR_WINDOW then -- another limit's request does not bring its windows
      state.b = same_shape(cell, alg) and select(2, alg.implementation.window(alg, at)) or at + cell.period_us
    end
    cell.changed = true
  end

  -- A debt is at most one full limit above the limit, or `amount` if that is less; 0 means a full limit.
  function path.charge(cell, alg, now, cost, amount)
    local state = cell.state
    local units = 0
    if state then units = implementation_of(cell.kind).used(path.writer_of(cell), state, now) end
    if amount == 0 then amount = alg.capacity end
    cost = min(cost, alg.capacity + min(amount, alg.capacity) - units)
    if cost <= 0 then return end
    if state and same_shape(cell, alg) then
      local time, a, b = alg.implementation.charge(alg, state, now, cost)
      if time < state.time then path.rebase(cell, time, alg) end
      put(cell, time, a, b, cost)
      return
    end
    replace(cell, alg, fresh(alg, now, units + cost))
  end

  function path.give_back(cell, alg, now, amount, taken_at, cost)
    local state = cell.state
    if not state or alg.capacity == 0 then return end
    rebase_if_ahead(cell, alg, now)
    if not same_shape(cell, alg) then return end
    local back, time, a, b = alg.implementation.give_back(alg, state, now, amount, taken_at, cost)
    if back == 0 then return end
    state.time, state.a, state.b = time, a, b
    if state.log then
      local log = log_entries()
      log.take_back(state.log, taken_at, back)
      if a > 0 and log.charged(state.log, b) == 0 then state.b = log.freed(state.log, a) end
    end
    cell.changed = true
  end

  -- Move the cost of an entry of a log to now; returns the tick of now, or nil if the entry is gone.
  function path.renew(cell, alg, now, cost, taken_at)
    local state = cell.state
    if not state or alg.capacity == 0 then return nil end
    rebase_if_ahead(cell, alg, now)
    if not state.log or not same_shape(cell, alg) then return nil end
    local at, log = instant(alg, state, now), log_entries()
    if taken_at <= at - alg.period or log.charged(state.log, taken_at) < cost then return nil end
    if taken_at ~= at and cost > 0 then
      local time, a, b = alg.implementation.charge(alg, state, now, cost)
      put(cell, time, a, b, cost)
      log.take_back(state.log, taken_at, cost)
      state.a = a - cost
    end
    return at
  end

  function path.write_log(cell, ttl)
    local log, l, records = log_entries(), cell.state.log, {}
    local sparse = log.last(l) + 1 - l.head > 2 * cell.state.a + 64 -- at least half of the entries were given back
    if cell.whole or sparse or (l.head > 64 and l.head * 2 > l.stored) then -- rewrite it without dropped entries
      for i = l.head, log.last(l) do
        local tick, cost = log.entry(l, i)
        if cost > 0 then records[#records + 1] = pack('>i8i8', tick, cost) end
      end
      local lead = header(cell) .. pack('>I4I4', 0, #records)
      call('SET', cell.key, lead .. table.concat(records), 'PX', ttl)
      return
    end
    for i, cost in pairs(l.edits) do
      if i >= l.head then call('SETRANGE', cell.key, LOG_BYTES + i * ENTRY_BYTES + 8, pack('>i8', cost)) end
    end
    for i, entry in ipairs(l.tail) do records[i] = pack('>i8i8', entry[1], entry[2]) end
    if #records > 0 then call('APPEND', cell.key, table.concat(records)) end
    call('SETRANGE', cell.key, 0, header(cell) .. pack('>I4I4', l.head, l.stored + #records))
    call('PEXPIRE', cell.key, ttl)
  end

  return path
end

local created
slow_path = function()
  created = created or make_slow_path()
  return created
end
