-- Twin of core/algorithms/level.py: token bucket, leaky bucket and GCRA, a level that falls at a steady rate.
-- State: `time`, and in `a` the level at that time, in units. (A product of ticks and rate above 2^53 is not exact, but
-- then it exceeds any level, which is all that matters.)

constructors[TOKEN_BUCKET] = function()
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
      local reset = NO_WAIT
      if after > 0 then reset = -floor(-after / alg.rate) end
      local queued = 0
      if alg.kind == LEAKY_BUCKET then queued = used end
      return true, at, after, 0, max(floor((alg.full - after) / alg.unit), 0), queued, reset
    end
    -- Evaluated in this order so that a large debt does not exceed 2^53.
    local missing = (alg.full - cost * alg.unit) - used
    return false, at, used, 0, max(floor((alg.full - used) / alg.unit), 0),
      -floor(missing / alg.rate), -floor(-used / alg.rate)
  end

  local function charge(alg, state, now, cost)
    local at = instant(alg, state, now)
    local used = level(alg, state, at)
    -- The end of a debt must not exceed 2^53.
    local max_debt = min(MAX_SAFE_INTEGER, alg.rate * floor(MAX_SAFE_INTEGER / alg.tick))
    if cost <= floor((max_debt - used) / alg.unit) then return at, used + cost * alg.unit, 0 end
    return at, max_debt, 0
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
    if -floor(-used / alg.unit) <= room then return NO_WAIT end
    return -floor((room * alg.unit - used) / alg.rate)
  end

  return {step = step, charge = charge, give_back = give_back, used = used, frees = frees}
end
constructors[LEAKY_BUCKET] = constructors[TOKEN_BUCKET]
constructors[GCRA] = constructors[TOKEN_BUCKET]
