-- Twin of core/algorithms/sliding_window_log.py: every admitted request is an entry, and those younger than one
-- period count. State: `time`, in `a` the total cost of the stored entries, in `b` the tick of the newest entry with a
-- cost; the entries are in log.lua. (Differences are computed before sums: the sum of two instants may exceed 2^53.)

constructors[SLIDING_WINDOW_LOG] = function()
  local log = log_entries()

  local function live(alg, state, at)
    if not state.log then return 0 end
    return state.a - log.expired(state.log, max(at, state.time) - alg.period)
  end

  local function step(alg, state, now, cost)
    local at = instant(alg, state, now)
    local seen = max(at, state.time) -- the instant in the time of the entries
    local gone = 0
    if state.log then gone = log.expired(state.log, seen - alg.period) end
    local live = state.a - gone
    local after = live + cost
    if after <= alg.capacity or cost == 0 then
      local newest = at
      if cost == 0 then newest = state.b + (at - seen) end
      return true, at, after, newest, max(alg.capacity - after, 0), 0,
        after > 0 and newest - at + alg.period or NO_WAIT
    end
    local newest = state.b + (at - seen)
    local freeing = at
    if state.log then freeing = log.freed(state.log, gone + after - alg.capacity) + (at - seen) end
    return false, at, live, newest, max(alg.capacity - live, 0), freeing - at + alg.period,
      live > 0 and newest - at + alg.period or NO_WAIT
  end

  local function charge(alg, state, now, cost)
    local at = instant(alg, state, now)
    return at, min(live(alg, state, at) + cost, MAX_SAFE_INTEGER), at
  end

  local function give_back(alg, state, now, amount, tick, cost)
    local at = instant(alg, state, now)
    if not state.log or at < state.time or tick <= at - alg.period then return 0, at, state.a, state.b end
    local back = min(amount, log.charged(state.log, tick))
    return back, at, state.a - back, state.b
  end

  local function used(alg, state, now)
    return live(alg, state, instant(alg, state, now))
  end

  local function frees(alg, state, now, room)
    local at = instant(alg, state, now)
    local excess = live(alg, state, at) - room
    if excess <= 0 or not state.log then return NO_WAIT end
    local last = state.b
    if room > 0 then last = log.freed(state.log, state.a - room) end
    return last - max(at, state.time) + alg.period
  end

  return {step = step, charge = charge, give_back = give_back, used = used, frees = frees}
end
constructors[CONCURRENCY] = constructors[SLIDING_WINDOW_LOG]
