-- Decides a batch of requests on counters in this Redis: the twin of core/algorithms and stores/decide.py.
--
-- All numbers are integers below 2^53, which doubles represent exactly, and only + - *, comparison and floor(a / b) are
-- used: so every decision and every state equals that of the Python code, to the bit.
--
-- Redis runs this text from its first line at every call, and creating a function costs about as much as calling it. So
-- what few batches need is created on demand: each algorithm (`implementations`), and the slow path; and a batch of one
-- TAKE is mostly decided before any function is created (single.lua).

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
local SINGLE_BYTES = 81 -- of a batch of one limit, without segments, and one request with one member

-- Waits are returned in ticks from the counter's instant, since microseconds from now could exceed 2^53; codec.py
-- converts them. NO_WAIT: nothing to wait for.
local NO_WAIT = -1
