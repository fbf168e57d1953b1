-- Decides whole requests: every check of one is charged, or none. Rust twin: src/decide/all.rs.
--
-- KEYS   one a check
-- ARGV   1 now (µs; "" reads the server's clock)   2 slack that a key outlives its meaning (ms)
--        then for each request the number of its checks, and for each of these:
--        kind, cost (units), whether it is enforced (0|1), the kind's numbers
-- reply  now (µs), then for each check: allowed (0|1), remaining (units), retry_after (µs; -1 never),
--        reset_after (µs), delay (µs)
--
-- All of them stand at one instant. Requests are decided one after the other, as if each had come alone.
-- Whole numbers only, all below 2^53: a Lua number holds them exactly.
local now = instant(1)
local slack_ms = tonumber(ARGV[2])
-- With room for one check: most requests have no more.
local reply = { now, 0, 0, 0, 0, 0 }

-- The next check: what is asked, and what is kept for it. `decide` fills in the rest.
local function ask_at(arg, key)
  local kind = kind_named(ARGV[arg])
  return {
    key = key,
    kind = kind,
    cost = tonumber(ARGV[arg + 1]),
    enforced = ARGV[arg + 2] == "1",
    rule = kind.rule(arg + 3),
    kept = kind.read(key),
    change = nil,
    allowed = 0,
    remaining = 0,
    retry_after = 0,
    reset_after = 0,
    delay = 0,
  }
end

local function decide(ask, cost)
  ask.change, ask.allowed, ask.remaining, ask.retry_after, ask.reset_after, ask.delay =
    ask.kind.decide(ask.rule, ask.kept, now, cost)
end

-- State and expiry go in one command, or in one script: no key without an expiry.
local function write(ask)
  local ttl_ms = max(div_ceil(ask.reset_after, 1000) + slack_ms, 1)
  if ask.kind.write then
    ask.kind.write(ask.kept, ask.change, now, ttl_ms)
  else
    call("SET", ask.key, ask.change, "PX", ttl_ms)
  end
end

local arg, key, at = 3, 1, 1
while ARGV[arg] do
  local asks, denied = {}, false
  local count = tonumber(ARGV[arg])
  arg = arg + 1
  for i = 1, count do
    local ask = ask_at(arg, KEYS[key])
    arg, key = arg + 3 + ask.kind.numbers, key + 1
    decide(ask, ask.cost)
    if ask.enforced and ask.allowed == 0 then denied = true end
    asks[i] = ask
  end
  for i = 1, count do
    local ask = asks[i]
    -- What is spared is answered as if it had only looked.
    if denied and ask.allowed == 1 then decide(ask, 0) end
    if ask.change then write(ask) end
    reply[at + 1], reply[at + 2], reply[at + 3] = ask.allowed, ask.remaining, ask.retry_after
    reply[at + 4], reply[at + 5] = ask.reset_after, ask.delay
    at = at + 5
  end
end
if at == 1 then return { now } end
return reply
