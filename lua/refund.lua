-- Gives back what was charged, as far as nobody gains by it. Rust twin: `refund` of each kind.
--
-- KEYS   one a charge
-- ARGV   1 now (µs; "" reads the server's clock)   2 slack that a key outlives its meaning (ms)
--        then for each charge: kind, when it was made (µs), cost (units), the reset_after of its decision (µs), the
--        kind's numbers
-- reply  now (µs), then for each charge what a look at cost 0 finds: as that of decide.lua
local now = instant(1)
local slack_ms = tonumber(ARGV[2])
local reply = { now }

local function write(key, change, reset_after)
  if change == "" then
    call("DEL", key)
    return
  end
  local ttl_ms = max(div_ceil(reset_after, 1000) + slack_ms, 1)
  if change == true then
    -- A list, which is rewritten already.
    call("PEXPIRE", key, ttl_ms)
  else
    call("SET", key, change, "PX", ttl_ms)
  end
end

local arg, at = 3, 1
for _, key in ipairs(KEYS) do
  local kind = kind_named(ARGV[arg])
  local charge =
    { at = tonumber(ARGV[arg + 1]), cost = tonumber(ARGV[arg + 2]), reset_after = tonumber(ARGV[arg + 3]) }
  local rule = kind.rule(arg + 4)
  -- What is left, and how that is written: a value, true for a list, "" for nothing; nil if nothing was given back.
  local left, change = kind.refund(rule, kind.read(key), charge, now)
  local _, allowed, remaining, retry_after, reset_after, delay = kind.decide(rule, left, now, 0)
  if change then write(key, change, reset_after) end
  reply[at + 1], reply[at + 2], reply[at + 3] = allowed, remaining, retry_after
  reply[at + 4], reply[at + 5] = reset_after, delay
  arg, at = arg + 4 + kind.numbers, at + 5
end
return reply
