-- The batch: limits, then requests with their members (wire.py writes it), answered in one string.

local function fresh(alg, now, units)
  return steps[alg.kind].charge(alg, EMPTY, now, units)
end

-- A step on a counter that another limit wrote: the whole units used under that one count as charged now. Where
-- the waits are those of the old limit, its instant and tick come with them.
local function carry(cell, alg, now, cost)
  local writer, state = writer_of(cell), cell.state
  local old = steps[cell.kind]
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
  if cost > 0 then
    local new = {time = time, a = a, b = b}
    if alg.kind == SLIDING_WINDOW_LOG then
      new.log = log.new(cell.key, 0, 0, 0)
      log.append(new.log, time, a)
    end
    return true, time, a, b, left, queued, steps[alg.kind].frees(alg, new, now, 0)
  end
  return true, time, a, b, left, queued, old.frees(writer, state, now, 0), seen, writer.tick
end

local function step(cell, alg, now, cost)
  if not cell.state then return steps[alg.kind].step(alg, EMPTY, now, cost) end
  if same_shape(cell, alg) then return steps[alg.kind].step(alg, cell.state, now, cost) end
  return carry(cell, alg, now, cost)
end

local DENIED, ADMITTED, NEVER, TAKEN = 0, 1, 2, 3

-- `wait` and `reset` are in ticks of so many microseconds from the instant `at`.
local function reply(verdict, remaining, wait, reset, at, tick)
  return struct.pack('>Bi8i8i8i8I4', verdict, remaining, wait, reset, at, tick)
end

-- The decision that a TAKE would give, with the numbers of the counter as it stands.
local function peek(cell, alg, now, cost)
  if alg.capacity == 0 then return reply(NEVER, 0, 0, NEVER_MIND, 0, 1) end
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
    put(cell, time, a, b, cost)
  else
    replace(cell, alg, time, a, b)
  end
end

local function take(members, now, replies)
  local admitted = true
  for _, m in ipairs(members) do
    local cell, alg = m.cell, m.alg
    if cell.state then
      local writer = writer_of(cell)
      local at = floor(now / writer.tick)
      if cell.state.time - at > writer.period then rebase(cell, at) end
    end
    if alg.capacity > 0 and m.cost <= alg.capacity then
      m.allowed, m.time, m.a, m.b, m.remaining, m.wait, m.reset, m.seen, m.tick = step(cell, alg, now, m.cost)
    end
    if m.binds and not m.allowed then admitted = false end
  end
  for _, m in ipairs(members) do
    if admitted and m.allowed then
      if m.cost > 0 then write(m.cell, m.alg, m.time, m.a, m.b, m.cost) end
      replies[#replies + 1] = reply(TAKEN, m.remaining, m.wait, m.reset, m.seen or m.time, m.tick or m.alg.tick)
    else
      replies[#replies + 1] = peek(m.cell, m.alg, now, m.cost)
    end
  end
end

local function charge(m, now)
  local cell, alg = m.cell, m.alg
  if m.cost == 0 or alg.capacity == 0 then return end
  if cell.state and same_shape(cell, alg) then
    local time, a, b = steps[alg.kind].charge(alg, cell.state, now, m.cost)
    put(cell, time, a, b, m.cost)
    return
  end
  local units = 0
  if cell.state then units = steps[cell.kind].used(writer_of(cell), cell.state, now) end
  replace(cell, alg, fresh(alg, now, units + m.cost))
end

local function give_back(m, now)
  local cell, alg = m.cell, m.alg
  if not cell.state or alg.capacity == 0 or not same_shape(cell, alg) then return end
  local back, time, a, b = steps[alg.kind].give_back(alg, cell.state, now, m.amount, m.taken_at, m.cost)
  if back > 0 then put_back(cell, time, a, b, m.taken_at, back) end
end

local batch = ARGV[1]
local now, limits_given, requests_given, at = struct.unpack('>i8I2I2', batch)
local linger = 0
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  linger = 3600000 -- virtual time: what expires by the server's clock must not expire in the middle of a test
end

local limits = {}
for i = 1, limits_given do
  local alg = {}
  alg.kind, alg.tick, alg.period, alg.period_us, alg.count, alg.capacity, alg.unit, alg.rate, alg.full, alg.longest,
    alg.deepest, at = struct.unpack('>BI4i8i8i8i8i8i8i8i8i8', batch, at)
  limits[i] = alg
end

local cells, replies = {}, {}
for _ = 1, requests_given do
  local op, members_given
  op, members_given, at = struct.unpack('>BI2', batch, at)
  local members = {}
  for i = 1, members_given do
    local m, key, limit, binds = {}
    key, limit, binds, m.cost, m.taken_at, m.amount, at = struct.unpack('>I2I2BI4i8I4', batch, at)
    local cell = cells[key]
    if not cell then
      cell = read_cell(KEYS[key])
      cells[key] = cell
    end
    m.cell, m.alg, m.binds = cell, limits[limit], binds == 1
    members[i] = m
  end
  if op == TAKE then
    take(members, now, replies)
  else
    for _, m in ipairs(members) do
      if op == PEEK then
        replies[#replies + 1] = peek(m.cell, m.alg, now, m.cost)
      else
        if op == RESET then forget(m.cell) elseif op == CHARGE then charge(m, now) else give_back(m, now) end
        replies[#replies + 1] = peek(m.cell, m.alg, now, 0)
      end
    end
  end
end

for _, cell in pairs(cells) do
  if cell.changed then write_cell(cell, now, linger) end
end
return struct.pack('>i8', now) .. table.concat(replies)
