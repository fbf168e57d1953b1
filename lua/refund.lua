-- Gives back what was charged, as far as nobody gains by it. Rust twin: `refund` of each kind.
--
-- KEYS   one a charge
-- asked  then the charges: number of its rule (2 bytes), when it was made (µs, 7), cost (units, 6), the reset_after of
--        its decision (µs, 7)
-- reply  now, then for each charge what a look at cost 0 finds: as that of decide.lua
local reply = { pack(">i8", now) }

for number, key in ipairs(KEYS) do
  local charged, rule = {}, nil
  rule, charged.at, charged.cost, charged.reset_after, at = unpack(">I2I7I6I7", asked, at)
  rule = rules[rule]
  local kept = rule.open and rule.open(key) or call("MGET", key)[1]
  -- What is there instead: a value, a log that is rewritten already, "" for nothing; nil if nothing was given back.
  local change = rule.refund(rule, kept, charged, now)
  if change == "" then
    call("DEL", key)
    kept = rule.open and rule.open(key)
  elseif change then
    kept = change
  end
  local _, allowed, remaining, retry_after, reset_after, delay = rule.decide(rule, kept, now, 0)
  if change and change ~= "" then
    local ttl_ms = max(div_ceil(reset_after, 1000) + slack_ms, 1)
    if rule.open then call("PEXPIRE", key, ttl_ms) else call("SET", key, change, "PX", ttl_ms) end
  end
  reply[number + 1] = pack(">i8i8i8i8i8", allowed, remaining, retry_after, reset_after, delay)
end
return table.concat(reply)
