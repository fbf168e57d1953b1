-- Decides whole requests: every check of one is charged, or none. Rust twin: src/decide/all.rs.
--
-- KEYS   what checks are about, each once
-- asked  then the checks: number of its key (2 bytes), number of its rule (2), cost (units, 6), and one byte: whether it
--        is enforced (1) and whether it is the last of its request (2), as a sum
-- reply  now (µs), then for each check: allowed (0|1), remaining (units), retry_after (µs; -1 never),
--        reset_after (µs), delay (µs): 8 bytes each
--
-- All of them stand at one instant. Requests are decided one after the other, as if each had come alone: what one keeps
-- is what the next finds. It is written once, at the end.
-- Whole numbers only, all below 2^53: a Lua number holds them exactly.

-- What is kept, by the number of its key: values, read at once, and logs, each opened when it is first asked about.
local kept = #rules > sliding_logs and call("MGET", spread(KEYS)) or {}
-- Of what has changed, how long until it means nothing any more (µs).
local resets = {}
local reply, answered = { pack(">i8", now) }, 1

local function keep(rule, key, change, reset_after)
  if rule.keep then rule.keep(rule, kept[key], change, now) else kept[key] = change end
  resets[key] = reset_after
end

-- Of a request of several checks.
local rule_of, key_of, changes, allows, resets_of
while at <= #asked do
  local count, denied, flags = 0, false, 0
  repeat
    local key, number, cost
    key, number, cost, flags, at = unpack(">I2I2I6B", asked, at)
    local rule = rules[number]
    if rule.open and type(kept[key]) ~= "table" then kept[key] = rule.open(KEYS[key]) end
    local change, allowed, remaining, retry_after, reset_after, delay = rule.decide(rule, kept[key], now, cost)
    answered = answered + 1
    reply[answered] = pack(">i8i8i8i8i8", allowed, remaining, retry_after, reset_after, delay)
    if count == 0 and flags >= 2 then
      if change then keep(rule, key, change, reset_after) end
    else
      if not rule_of then rule_of, key_of, changes, allows, resets_of = {}, {}, {}, {}, {} end
      count = count + 1
      rule_of[count], key_of[count], changes[count] = rule, key, change
      allows[count], resets_of[count] = allowed == 1, reset_after
      if allowed == 0 and flags % 2 == 1 then denied = true end
    end
  until flags >= 2
  for i = 1, count do
    local rule, key = rule_of[i], key_of[i]
    if denied and allows[i] then
      -- What is spared is answered as if it had only looked.
      local _, _, remaining, retry_after, reset_after, delay = rule.decide(rule, kept[key], now, 0)
      reply[answered - count + i] = pack(">i8i8i8i8i8", 1, remaining, retry_after, reset_after, delay)
    elseif changes[i] then
      keep(rule, key, changes[i], resets_of[i])
    end
  end
end

-- State and expiry go in one command, or in one script: no key without an expiry.
for key, reset_after in pairs(resets) do
  local state = kept[key]
  local ttl_ms = max(div_ceil(reset_after, 1000) + slack_ms, 1)
  if type(state) == "table" then state.write(state, ttl_ms) else call("SET", KEYS[key], state, "PX", ttl_ms) end
end
return table.concat(reply)
