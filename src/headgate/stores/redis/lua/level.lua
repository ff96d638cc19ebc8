-- Twin of core/algorithms/level.py: token bucket, leaky bucket and GCRA, a level that falls at a steady rate.
-- State: `time`, and in `a` the level at that time, in units. (A product of ticks and rate beyond 2^53 is not exact, but
-- then it is more than any level, which is all that matters.)

makers[TOKEN_BUCKET] = function()
  local function level(alg, state, at)
    local elapsed = at - state.time
    if elapsed <= 0 then return state.a end
    return max(state.a - elapsed * alg.rate, 0)
  end

  local function step(alg, state, now, cost)
    local at = instant(alg, state, now)
    local used = level(alg, state, at)
    local after = used + cost * alg.unit
    if after <= alg.full or cost == 0 then
      local reset = NEVER_MIND
      if after > 0 then reset = -floor(-after / alg.rate) end
      local queued = 0
      if alg.kind == LEAKY_BUCKET then queued = used end
      return true, at, after, 0, max(floor((alg.full - after) / alg.unit), 0), queued, reset
    end
    -- What is missing is put together so that a deep debt does not leave the whole numbers.
    local missing = (alg.full - cost * alg.unit) - used
    return false, at, used, 0, max(floor((alg.full - used) / alg.unit), 0),
      -floor(missing / alg.rate), -floor(-used / alg.rate)
  end

  local function charge(alg, state, now, cost)
    local at = instant(alg, state, now)
    local used = level(alg, state, at)
    local deepest = min(LARGEST, alg.rate * floor(LARGEST / alg.tick)) -- a debt is cut where its end is still whole
    if cost <= floor((deepest - used) / alg.unit) then return at, used + cost * alg.unit, 0 end
    return at, deepest, 0
  end

  local function give_back(alg, state, now, amount, tick, cost)
    local at = instant(alg, state, now)
    local used = level(alg, state, at)
    local elapsed = max(at - tick, 0)
    local back = max(min(amount * alg.unit, cost * alg.unit - elapsed * alg.rate, used), 0)
    return back, at, used - back, 0
  end

  local function used(alg, state, now)
    return -floor(-level(alg, state, instant(alg, state, now)) / alg.unit)
  end

  local function frees(alg, state, now, room)
    local at = instant(alg, state, now)
    local used = level(alg, state, at)
    if -floor(-used / alg.unit) <= room then return NEVER_MIND end
    return -floor((room * alg.unit - used) / alg.rate)
  end

  return {step = step, charge = charge, give_back = give_back, used = used, frees = frees}
end
makers[LEAKY_BUCKET] = makers[TOKEN_BUCKET]
makers[GCRA] = makers[TOKEN_BUCKET]
