-- The rest of the batch (encoded by codec.py): limits, then requests with their members. The reply is one string.

local function step(cell, alg, now, cost)
  local state = cell.state
  if not state then return alg.implementation.step(alg, EMPTY, now, cost) end
  if same_shape(cell, alg) then return alg.implementation.step(alg, state, now, cost) end
  return slow_path().carry(cell, alg, now, cost)
end

-- `wait` and `reset` are in ticks of `tick` microseconds from the instant `at`.
local function reply(verdict, remaining, wait, reset, at, tick)
  return pack('>Bi8i8i8i8I4', verdict, remaining, wait, reset, at, tick)
end

-- The decision that a TAKE would give, with the current numbers of the counter.
local function peek(cell, alg, now, cost)
  if alg.capacity == 0 then return reply(NEVER, 0, 0, NO_WAIT, 0, 1) end
  local allowed, at, _, _, remaining, wait, reset, seen, tick = step(cell, alg, now, 0)
  local verdict = ADMITTED
  if cost > alg.capacity then
    verdict = NEVER
  elseif cost > 0 then
    allowed, _, _, _, _, wait = step(cell, alg, now, cost)
    if not allowed then verdict = DENIED end
  end
  return reply(verdict, remaining, wait, reset, seen or at, tick or alg.tick)
end

local function write(cell, alg, time, a, b, cost)
  if cell.state and same_shape(cell, alg) then
    cell.writer = alg
    put(cell, time, a, b, cost)
  else
    replace(cell, alg, time, a, b)
  end
end

local function take_one(cell, alg, cost, now, flags)
  rebase_if_ahead(cell, alg, now)
  if alg.capacity == 0 or cost > alg.capacity or flags > 1 then return peek(cell, alg, now, cost) end
  local allowed, time, a, b, remaining, wait, reset, seen, tick = step(cell, alg, now, cost)
  if not allowed then return peek(cell, alg, now, cost) end
  if cost > 0 then write(cell, alg, time, a, b, cost) end
  return reply(TAKEN, remaining, wait, reset, seen or time, tick or alg.tick)
end

-- As a PEEK of cost 0, with the new tick; NEVER if the entry is gone.
local function renew(cell, alg, now, cost, taken_at)
  local renewed_at = slow_path().renew(cell, alg, now, cost, taken_at)
  if alg.capacity == 0 then return peek(cell, alg, now, 0) end
  local _, at, _, _, remaining, _, reset, seen, tick = step(cell, alg, now, 0)
  return reply(renewed_at and TAKEN or NEVER, remaining, 0, reset, seen or at, tick or alg.tick)
end

-- A counter that cannot be read fails its request; the rest of the batch is decided.
local function refuse(cell)
  return reply(FOREIGN, cell.foreign, 0, NO_WAIT, 0, 1)
end

local function take(members, now, replies)
  for _, m in ipairs(members) do
    if m.cell.foreign then
      for _ = 1, #members do replies[#replies + 1] = refuse(m.cell) end
      return
    end
  end
  local admitted = true
  for _, m in ipairs(members) do
    rebase_if_ahead(m.cell, m.alg, now)
    if m.alg.capacity > 0 and m.cost <= m.alg.capacity then
      m.allowed, m.time, m.a, m.b, m.remaining, m.wait, m.reset, m.seen, m.tick = step(m.cell, m.alg, now, m.cost)
    end
    if m.binds and not m.allowed then admitted = false end
  end
  for _, m in ipairs(members) do
    if admitted and m.allowed and not m.peeks then
      if m.cost > 0 then write(m.cell, m.alg, m.time, m.a, m.b, m.cost) end
      replies[#replies + 1] = reply(TAKEN, m.remaining, m.wait, m.reset, m.seen or m.time, m.tick or m.alg.tick)
    else
      replies[#replies + 1] = peek(m.cell, m.alg, now, m.cost)
    end
  end
end

local limits = {}
for i = 1, limits_given do
  local kind, tick, period_us, count, capacity, unit, rate
  kind, tick, period_us, count, capacity, unit, rate, at = unpack_from('>BI4i8i8i8i8i8', batch, at)
  limits[i] = {
    kind = kind, tick = tick, period = floor(period_us / tick), period_us = period_us, count = count,
    capacity = capacity, unit = unit, rate = rate, full = capacity * unit, implementation = implementation_of(kind),
  }
  if kind == CALENDAR_WINDOW then -- its segments follow
    local starts, lengths = {}, {}
    for j = 1, rate do starts[j], lengths[j], at = unpack_from('>i8i8', batch, at) end
    limits[i].starts, limits[i].lengths = starts, lengths
  end
end

local cells, order, replies = {}, {}, {pack('>i8', now)}
local records
while at <= #batch do
  local op, members_given
  op, members_given, at = unpack_from('>BI2', batch, at)
  if op > GIVE_BACK and op < RENEW then
    records = records or make_records(batch, now, grace_ms)
    at = records.apply(op, at, replies)
  end
  local members = members_given > 1 and op == TAKE and {}
  for i = 1, members_given do
    local key, limit, flags, cost, taken_at, amount -- flags: binds (1), peeks (2)
    key, limit, flags, cost, taken_at, amount, at = unpack_from('>I2I2BI4i8I4', batch, at)
    local cell, alg = cells[key], limits[limit]
    if not cell then
      cell = read_cell(KEYS[key], alg)
      cells[key] = cell
      order[#order + 1] = cell
    end
    if members then
      members[i] = {
        cell = cell, alg = alg, binds = flags == 1 or flags == 3, peeks = flags > 1, cost = cost, allowed = false,
        time = 0, a = 0, b = 0, remaining = 0, wait = 0, reset = 0, seen = nil, tick = nil,
      }
    elseif cell.foreign and op ~= RESET then
      replies[#replies + 1] = refuse(cell)
    elseif op == TAKE then
      replies[#replies + 1] = take_one(cell, alg, cost, now, flags)
    elseif op == PEEK then
      replies[#replies + 1] = peek(cell, alg, now, cost)
    elseif op == RENEW then
      replies[#replies + 1] = renew(cell, alg, now, cost, taken_at)
    else
      if op == RESET then
        cell.state, cell.writer, cell.foreign, cell.changed = nil, nil, nil, true
      elseif op == CHARGE then
        slow_path().charge(cell, alg, now, cost, amount)
      else
        slow_path().give_back(cell, alg, now, amount, taken_at, cost)
      end
      replies[#replies + 1] = peek(cell, alg, now, 0)
    end
  end
  if members then take(members, now, replies) end
end

for _, cell in ipairs(order) do
  if cell.changed then write_cell(cell, now, grace_ms) end
end
if records then
  records.write()
  replies[1] = replies[1] .. records.encode_stored()
end
return table.concat(replies)
