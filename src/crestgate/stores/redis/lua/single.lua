-- The batch begins with the time (below 0: this server's) and the number of limits.

local batch = ARGV[1]
local now, limits_given, _, at = unpack_from('>i8I2I2', batch)
local grace_ms = 0
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  grace_ms = 3600000 -- virtual time: keys must not expire by the server's clock during a test
end

-- One TAKE of one counter without a log: most batches at light load. To create the functions below would take longer
-- than to decide it, so it is decided here, as they would. What is not so simple is left to them: a counter that
-- another limit wrote, or that is ahead of the clock, and what a sliding window counter denies.
if #batch == SINGLE_BYTES and limits_given == 1 then
  local kind, tick, period_us, count, capacity, unit, rate, op, members, _, _, flags, cost =
    unpack_from('>BI4i8i8i8i8i8BI2I2I2BI4', batch, at)
  local simple = op == TAKE and members == 1 and flags < 2 and 0 < cost and cost <= capacity
    and kind ~= SLIDING_WINDOW_LOG and kind < CALENDAR_WINDOW
  local seen, period = floor(now / tick), floor(period_us / tick)
  local time, a, b = -MAX_SAFE_INTEGER, 0, 0
  local bytes = simple and redis.pcall('GET', KEYS[1])
  if bytes then
    simple = #bytes == STATE_BYTES -- the length of a table, which is an error, is 0
    if simple then
      local version, its_kind, its_tick, its_count, its_period_us
      version, its_kind, its_tick, its_count, its_period_us, time, a, b = unpack_from('>BBI4i8i8i8i8i8', bytes)
      simple = version == STATE_VERSION and its_kind == kind and its_tick == tick and its_count == count
        and its_period_us == period_us and time - seen <= period
      if time > seen then seen = time end
    end
  end
  local used, left, wait, reset
  local verdict = TAKEN
  if not simple then
    verdict = nil
  elseif kind == FIXED_WINDOW then
    local ends = period - (seen - floor(seen / period) * period)
    used = a
    if time < seen + ends - period then used = 0 end
    a, b, left, wait, reset = used + cost, 0, capacity - used - cost, 0, ends
    if left < 0 then verdict, left, wait, reset = DENIED, max(capacity - used, 0), ends, used > 0 and ends or NO_WAIT end
  elseif kind == SLIDING_WINDOW_COUNTER then
    local gone = seen - floor(seen / period) * period
    if time < seen - gone - period then a = 0 end
    if time < seen - gone then a, b = 0, a end
    used = a + floor(b * (period - gone) / period)
    if used == 0 then b = 0 end
    a, left, wait = a + cost, capacity - used - cost, 0
    reset = period - gone + (period + 1 + floor(-period / a))
    if left < 0 then verdict = nil end
  elseif kind == TOKEN_BUCKET or kind == LEAKY_BUCKET or kind == GCRA then
    local full, units = capacity * unit, cost * unit
    used = a
    if seen > time then used = max(a - (seen - time) * rate, 0) end
    a, b = used + units, 0
    if a <= full then
      left, wait, reset = floor((full - a) / unit), kind == LEAKY_BUCKET and used or 0, -floor(-a / rate)
    else
      verdict, left, wait = DENIED, max(floor((full - used) / unit), 0), -floor((full - units - used) / rate)
      reset = used > 0 and -floor(-used / rate) or NO_WAIT
    end
  else
    verdict = nil
  end
  if verdict == TAKEN then
    local ttl = max(floor(((seen + reset) * tick - now) / 1000), 0) + 1000 + grace_ms
    local state = pack('>BBI4i8i8i8i8i8', STATE_VERSION, kind, tick, count, period_us, seen, a, b)
    call('SET', KEYS[1], state, 'PX', ttl)
  end
  if verdict then return pack('>i8Bi8i8i8i8I4', now, verdict, left, wait, reset, seen, tick) end
end
