-- What a call begins with.
--
-- ARGV   1 what is asked   2 now (µs); without it the server's clock is read
-- asked  slack that a key outlives its meaning (ms, 7 bytes); how many rules there are of each kind (2 each), in the
--        order of the kinds below, and how many penalties (2); the rules in that order, each its kind's numbers, and
--        the penalties. All big-endian
local asked, now = ARGV[1], tonumber(ARGV[2])
if not now then
  local t = call("TIME")
  now = t[1] * 1000000 + t[2]
end
local slack_ms, token_buckets, leaky_buckets, fixed_windows, sliding_counters, sliding_logs, concurrencies,
  penalty_count, at =
  unpack(">I7I2I2I2I2I2I2I2", asked)
local rules = {}
