-- Twin of core/algorithms/sliding_window_counter.py: two adjacent windows, the older one weighted.
-- State: `time`, in `a` the count of the window that `time` lies in and in `b` that of the window before.

constructors[SLIDING_WINDOW_COUNTER] = function()
  -- The counts of the window of the tick `at` and of the window before, and the ticks since the window's start.
  local function counts(alg, state, at)
    local gone = mod(at, alg.period)
    if state.time >= at - gone then return state.a, state.b, gone end
    if state.time >= at - gone - alg.period then return 0, state.a, gone end
    return 0, 0, gone
  end

  -- The ticks from a window's start until floor(previous * (1 - pos)) <= room; a whole period at most.
  local function fades(alg, previous, room)
    if previous <= room then return 0 end
    return alg.period + 1 + floor(-(room + 1) * alg.period / previous)
  end

  -- The ticks from now until no more than `room` is used without further requests.
  local function clears(alg, gone, current, previous, room)
    if current <= room then
      local faded = fades(alg, previous, room - current)
      if faded < alg.period then return max(faded - gone, 0) end
    end
    return alg.period - gone + fades(alg, current, room)
  end

  local function step(alg, state, now, cost)
    local at = instant(alg, state, now)
    local current, previous, gone = counts(alg, state, at)
    local used = current + floor(previous * (alg.period - gone) / alg.period)
    if used == 0 then previous = 0 end -- fully recovered, whatever the clock does next
    local after = used + cost
    if after <= alg.capacity or cost == 0 then
      current = current + cost
      local reset = NO_WAIT
      if after > 0 then reset = clears(alg, gone, current, previous, 0) end
      return true, at, current, previous, max(alg.capacity - after, 0), 0, reset
    end
    local reset = NO_WAIT
    if used > 0 then reset = clears(alg, gone, current, previous, 0) end
    return false, at, current, previous, max(alg.capacity - used, 0),
      clears(alg, gone, current, previous, alg.capacity - cost), reset
  end

  local function charge(alg, state, now, cost)
    local at = instant(alg, state, now)
    local current, previous, gone = counts(alg, state, at)
    if current + floor(previous * (alg.period - gone) / alg.period) == 0 then previous = 0 end
    return at, min(current + cost, floor(MAX_SAFE_INTEGER / alg.period)), previous
  end

  local function used(alg, state, now)
    local at = instant(alg, state, now)
    local current, previous, gone = counts(alg, state, at)
    return current + floor(previous * (alg.period - gone) / alg.period)
  end

  local function frees(alg, state, now, room)
    if used(alg, state, now) <= room then return NO_WAIT end
    local at = instant(alg, state, now)
    local current, previous, gone = counts(alg, state, at)
    return clears(alg, gone, current, previous, room)
  end

  local function give_back(alg, state, now, amount, tick, cost)
    local at = instant(alg, state, now)
    local current, previous = counts(alg, state, at)
    local windows = floor(at / alg.period) - floor(tick / alg.period)
    if windows == 0 then
      local back = min(amount, current)
      return back, at, current - back, previous
    end
    if windows == 1 and frees(alg, state, now, 0) ~= NO_WAIT then
      local back = min(amount, previous)
      return back, at, current, previous - back
    end
    return 0, at, current, previous
  end

  return {step = step, charge = charge, give_back = give_back, used = used, frees = frees}
end
