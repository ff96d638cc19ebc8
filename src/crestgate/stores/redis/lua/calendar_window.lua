-- Twin of core/algorithms/calendar_window.py: requests counted in windows of civil time.
-- State: `time`, in `a` the count of the window that `time` lies in, in `b` the end of that window.
--
-- Zones are unknown here. The limit comes with segments of windows (Calendar.segments in core/calendar.py) for the time
-- around now: `starts` and `lengths`. Before the first and after the last one, windows of its length go on.

constructors[CALENDAR_WINDOW] = function()
  local function window(alg, at)
    local starts, lengths = alg.starts, alg.lengths
    local i = 1
    while starts[i + 1] and at >= starts[i + 1] do i = i + 1 end
    local start = starts[i] + floor((at - starts[i]) / lengths[i]) * lengths[i]
    local ends = start + lengths[i]
    if starts[i + 1] then ends = min(ends, starts[i + 1]) end
    return start, ends
  end

  -- The count and the end of the window of the tick `at`.
  local function count(alg, state, at)
    local time, ends = state.time, state.b
    if time <= at and at < ends and ends - time <= alg.period then return state.a, ends end
    local start
    start, ends = window(alg, at)
    if time < start then return 0, ends end
    return state.a, ends
  end

  -- When a state stops counting, without the segments.
  local function state_ends(alg, state, now)
    if state.time - alg.period > now then return now + alg.period end
    return min(state.b, state.time + alg.period)
  end

  local function step(alg, state, now, cost)
    local at = instant(alg, state, now)
    local count, ends = count(alg, state, at)
    local after = count + cost
    if after <= alg.capacity or cost == 0 then
      return true, at, after, ends, max(alg.capacity - after, 0), 0, after > 0 and ends - at or NO_WAIT
    end
    return false, at, count, ends, max(alg.capacity - count, 0), ends - at, count > 0 and ends - at or NO_WAIT
  end

  local function charge(alg, state, now, cost)
    local at = instant(alg, state, now)
    local count, ends = count(alg, state, at)
    return at, min(count + cost, MAX_SAFE_INTEGER), ends
  end

  local function give_back(alg, state, now, amount, tick, cost)
    local at = instant(alg, state, now)
    local start, window_ends = window(alg, at)
    if tick < start or tick >= window_ends then return 0, at, 0, window_ends end
    local count, ends = count(alg, state, at)
    local back = min(amount, count)
    return back, at, count - back, ends
  end

  local function used(alg, state, now)
    if instant(alg, state, now) < state_ends(alg, state, now) then return state.a end
    return 0
  end

  local function frees(alg, state, now, room)
    if used(alg, state, now) <= room then return NO_WAIT end
    return state_ends(alg, state, now) - instant(alg, state, now)
  end

  return {step = step, charge = charge, give_back = give_back, used = used, frees = frees, window = window}
end
