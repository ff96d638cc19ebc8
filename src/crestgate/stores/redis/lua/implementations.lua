local EMPTY = {time = -MAX_SAFE_INTEGER, a = 0, b = 0}
local constructors, implementations = {}, {} -- by algorithm; implementations are created on demand
local slow_path -- a function that creates the slow path on demand

local function implementation_of(kind)
  local implementation = implementations[kind]
  if not implementation then
    implementation = constructors[kind]()
    implementations[kind] = implementation
  end
  return implementation
end

-- Whether counters of this kind have entries: a sliding log, and in-flight limits, which are one by another name.
local function keeps_log(kind)
  return kind == SLIDING_WINDOW_LOG or kind == CONCURRENCY
end

local function mod(a, b)
  return a - floor(a / b) * b
end

-- The tick at which a state is evaluated: now, but not before the state's own time, unless that is more than a period
-- ahead (see core/algorithms/algorithm.py).
local function instant(alg, state, now)
  local at = floor(now / alg.tick)
  if at < state.time and state.time - alg.period <= at then return state.time end
  return at
end
