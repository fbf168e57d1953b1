-- Looks: what checks find, and what they would come to. Nothing is written, and no expiry moves.
--
-- KEYS   what the checks are about, each once
-- asked  then the checks, as in decide.lua
-- reply  now (µs), then for each check what a look at cost 0 finds and what its cost would come to, each as in decide.lua
local reply = { pack(">i8", now) }

while at <= #asked do
  local key, number, cost, _
  key, number, cost, _, at = unpack(">I2I2I6B", asked, at)
  local rule = rules[number]
  local kept = rule.open and rule.open(KEYS[key]) or call("MGET", KEYS[key])[1]
  for _, units in ipairs({ 0, cost }) do
    local _, allowed, remaining, retry_after, reset_after, delay = rule.decide(rule, kept, now, units)
    reply[#reply + 1] = pack(">i8i8i8i8i8", allowed, remaining, retry_after, reset_after, delay)
  end
end
return table.concat(reply)
