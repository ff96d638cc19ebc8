-- What wrk sends: the bodies of a file, one line each, in rotation. They are made into requests before the clock runs,
-- so that wrk has little to do beside the server. Arguments: the file; a token or "-"; a prefix of idempotency keys,
-- of which every request gets a fresh one, or "-".

local MARK = "@idempotency@"
local heads, tails, sent, prefix = {}, {}, 0, nil

function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  if args[2] ~= "-" then
    wrk.headers["Authorization"] = "Bearer " .. args[2]
  end
  if args[3] ~= "-" then
    prefix = args[3]
    wrk.headers["Idempotency-Key"] = MARK
  end
  for body in io.lines(args[1]) do
    local whole = wrk.format(nil, nil, nil, body)
    local from, to = whole:find(MARK, 1, true)
    heads[#heads + 1] = from and whole:sub(1, from - 1) or whole
    tails[#tails + 1] = from and whole:sub(to + 1) or ""
  end
end

function request()
  sent = sent + 1
  local place = sent % #heads + 1
  if prefix then
    return heads[place] .. prefix .. sent .. tails[place]
  end
  return heads[place]
end

function done(summary, latency)
  local wrong = summary.errors
  io.write(string.format(
    '{"requests": %d, "microseconds": %d, "p50": %d, "p99": %d, "refused": %d, "lost": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    wrong.status, wrong.connect + wrong.read + wrong.write + wrong.timeout
  ))
end
