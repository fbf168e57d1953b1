-- Looks: what checks find, and what they would come to. Nothing is written, no expiry moves, and no penalty begins.
--
-- KEYS   what the checks are about, each once
-- asked  then the checks, as in decide.lua
-- reply  now (µs), then for each check what its kind finds at cost 0, and what its cost would come to, with the penalty
--        that runs: each as in decide.lua
local reply = { pack(">i8", now) }

while at <= #asked do
  local key, number, cost, flags
  key, number, cost, flags, at = unpack(">I2I2I6B", asked, at)
  local rule = rules[number]
  local kept = rule.open and rule.open(KEYS[key]) or call("MGET", KEYS[key])[1]
  local _, allowed, remaining, retry_after, reset_after, delay = rule.decide(rule, kept, now, 0)
  reply[#reply + 1] = pack(">i8i8i8i8i8", allowed, remaining, retry_after, reset_after, delay)
  _, allowed, remaining, retry_after, reset_after, delay = rule.decide(rule, kept, now, cost)
  if flags >= 4 then
    local beside, penalty
    beside, penalty, at = unpack(">I2I2", asked, at)
    _, _, _, allowed, remaining, retry_after, reset_after, delay = weigh(penalties[penalty],
      call("MGET", KEYS[beside])[1], false, now, cost, rule, kept, allowed, remaining, retry_after, reset_after, delay)
  end
  reply[#reply + 1] = pack(">i8i8i8i8i8", allowed, remaining, retry_after, reset_after, delay)
end
return table.concat(reply)
