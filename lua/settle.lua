-- Corrects what was charged to what the requests were worth. Rust twin: `Rule::settle` in src/decide/mod.rs.
--
-- KEYS   one a charge
-- asked  then the charges: number of its rule (2 bytes), when it was made (µs, 7), cost (units, 6), the reset_after of
--        its decision (µs, 7), what it was worth (units, 6; all bits set forget all that is kept at the key)
-- reply  now, then for each charge what a look at cost 0 finds: as that of decide.lua
local FORGOTTEN = USED_MAX
local reply = { pack(">i8", now) }

for number, key in ipairs(KEYS) do
  local charged, rule, spent = {}, nil, nil
  rule, charged.at, charged.cost, charged.reset_after, spent, at = unpack(">I2I7I6I7I6", asked, at)
  rule = rules[rule]
  local kept = rule.open and rule.open(key) or call("MGET", key)[1]
  -- What is there instead: a value, a log; "" for nothing. Nil if it stays as it is.
  local change
  if spent == FORGOTTEN then
    change = ""
  elseif spent > charged.cost then
    change = rule.charge_late(rule, kept, spent - charged.cost, now)
  elseif spent < charged.cost then
    charged.cost = charged.cost - spent
    change = rule.refund(rule, kept, charged, now)
  end
  if change == "" then
    call("DEL", key)
    kept = rule.open and rule.open(key)
  elseif change then
    kept = change
  end
  local _, allowed, remaining, retry_after, reset_after, delay = rule.decide(rule, kept, now, 0)
  if change and change ~= "" then write(key, change, reset_after) end
  reply[number + 1] = pack(">i8i8i8i8i8", allowed, remaining, retry_after, reset_after, delay)
end
return table.concat(reply)
