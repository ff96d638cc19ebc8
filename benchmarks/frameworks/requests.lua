-- wrk sends one and the same GET; here is only what it says at the end, in the words of the service's requests.lua.

function done(summary, latency)
  local wrong = summary.errors
  io.write(string.format(
    '{"requests": %d, "microseconds": %d, "p50": %d, "p99": %d, "refused": %d, "lost": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    wrong.status, wrong.connect + wrong.read + wrong.write + wrong.timeout
  ))
end
