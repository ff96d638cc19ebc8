-- Decides a batch of requests on counters in this Redis: the twin of core/algorithms and stores/decide.py.
--
-- All numbers are integers below 2^53, which doubles represent exactly, and only + - *, comparison and floor(a / b) are
-- used: so every decision and every state equals that of the Python code, to the bit.
--
-- Redis runs this text from its first line at every call, and creating a function costs about as much as calling it. So
-- what few batches need is created on demand: each algorithm (`implementations`), and the slow path.

local floor, max, min = math.floor, math.max, math.min
local call, pack, unpack_from = redis.call, struct.pack, struct.unpack

local MAX_SAFE_INTEGER = 9007199254740991
local TAKE, PEEK, RESET, CHARGE, GIVE_BACK, RENEW = 1, 2, 3, 4, 5, 11
local GROUP, END, CLAIM, SAVE, RELEASE = 6, 7, 8, 9, 10 -- of idempotency records: GROUP and END enclose its requests
local DENIED, ADMITTED, NEVER, TAKEN, FOREIGN = 0, 1, 2, 3, 4

local STATE_VERSION = 1
local STATE_BYTES = 46  -- of a counter without a log
local LOG_BYTES = 54    -- of the header of a counter with a log
local ENTRY_BYTES = 16
local CHUNK = 32        -- entries of a log per read

-- Waits are returned in ticks from the counter's instant, since microseconds from now could exceed 2^53; codec.py
-- converts them. NO_WAIT: nothing to wait for.
local NO_WAIT = -1

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
