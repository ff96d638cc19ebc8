-- Decides a batch of requests on counters in this Redis: the twin of core/algorithms and stores/deciding.py.
--
-- All numbers are whole and below 2^53, which doubles hold exactly; only + - *, comparison and floor(a / b) touch
-- them, so every decision and every state is, to the bit, what the Python steps come to.

--
-- Redis runs this text from its first line at every call, and making a function costs about as much as calling it. So
-- what not every batch needs is made when it is asked for: each algorithm (`twins`), and the rarer parts (`rare`).

local floor, max, min = math.floor, math.max, math.min
local call, pack, unpack_from = redis.call, struct.pack, struct.unpack

local LARGEST = 9007199254740991
local TOKEN_BUCKET, LEAKY_BUCKET, FIXED_WINDOW = 1, 2, 3
local SLIDING_WINDOW_LOG, SLIDING_WINDOW_COUNTER, GCRA = 4, 5, 6
local TAKE, PEEK, RESET, CHARGE, GIVE_BACK = 1, 2, 3, 4, 5
local ONCE, END, CLAIM, KEEP, RELEASE = 6, 7, 8, 9, 10 -- of records: the first two hold a group of requests
local DENIED, ADMITTED, NEVER, TAKEN, FOREIGN = 0, 1, 2, 3, 4

local STATE_VERSION = 1
local STATE_BYTES = 46  -- of a counter without a log
local LOG_BYTES = 54    -- of the header of a counter with a log
local ENTRY_BYTES = 16
local PIECE = 32        -- entries of a log that are read at once

-- Waits are said in ticks from the instant at which a counter is seen: microseconds from now could leave the whole
-- numbers. wire.py turns them into those. NEVER_MIND: nothing to wait for.
local NEVER_MIND = -1

local EMPTY = {time = -LARGEST, a = 0, b = 0}
local makers, twins = {}, {} -- by algorithm: how its twin is made, and those that are
local rare -- what few batches need, once it is made

local function twin_of(kind)
  local twin = twins[kind]
  if not twin then
    twin = makers[kind]()
    twins[kind] = twin
  end
  return twin
end

local function mod(a, b)
  return a - floor(a / b) * b
end

-- The tick at which a state is to be seen: now, but never before the state's own time, unless that is more than a
-- period ahead (see core/algorithms/algorithm.py).
local function instant(alg, state, now)
  local at = floor(now / alg.tick)
  if at < state.time and state.time - alg.period <= at then return state.time end
  return at
end
