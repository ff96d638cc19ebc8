-- Twin of core/algorithms/fixed_window.py: requests counted in windows of one period, aligned to the epoch.
-- State: `time`, and in `a` the count of the window that `time` lies in.

constructors[FIXED_WINDOW] = function()
  local function count(alg, state, at)
    if state.time < at - mod(at, alg.period) then return 0 end
    return state.a
  end

  local function step(alg, state, now, cost)
    local at = instant(alg, state, now)
    local count = count(alg, state, at)
    local ends = alg.period - mod(at, alg.period)
    local after = count + cost
    if after <= alg.capacity or cost == 0 then
      return true, at, after, 0, max(alg.capacity - after, 0), 0, after > 0 and ends or NO_WAIT
    end
    return false, at, count, 0, max(alg.capacity - count, 0), ends, count > 0 and ends or NO_WAIT
  end

  local function charge(alg, state, now, cost)
    local at = instant(alg, state, now)
    return at, min(count(alg, state, at) + cost, MAX_SAFE_INTEGER), 0
  end

  local function give_back(alg, state, now, amount, tick, cost)
    local at = instant(alg, state, now)
    if floor(at / alg.period) ~= floor(tick / alg.period) then return 0, at, 0, 0 end
    local count = count(alg, state, at)
    local back = min(amount, count)
    return back, at, count - back, 0
  end

  local function used(alg, state, now)
    return count(alg, state, instant(alg, state, now))
  end

  local function frees(alg, state, now, room)
    local at = instant(alg, state, now)
    if count(alg, state, at) <= room then return NO_WAIT end
    return alg.period - mod(at, alg.period)
  end

  return {step = step, charge = charge, give_back = give_back, used = used, frees = frees}
end
