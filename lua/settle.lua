-- Corrects what was charged to what the requests were worth. Rust twin: `Rule::settle` in src/decide/mod.rs.
--
-- KEYS   one a charge, and that of its penalty after it if there is one
-- asked  then the charges: number of its rule (2 bytes), when it was made (µs, 7), cost (units, 6), the reset_after of
--        its decision (µs, 7), what it was worth (units, 6; all bits set forget all that is kept at the key), number of
--        its penalty (2; 0 if there is none)
-- reply  now, then for each charge what a look at cost 0 finds: as that of decide.lua
local FORGOTTEN = USED_MAX
local reply, answered, last = { pack(">i8", now) }, 1, 0

while at <= #asked do
  local charged, rule, spent, penalty = {}, nil, nil, nil
  rule, charged.at, charged.cost, charged.reset_after, spent, penalty, at = unpack(">I2I7I6I7I6I2", asked, at)
  rule = rules[rule]
  local key, beside = KEYS[last + 1], penalty > 0 and KEYS[last + 2]
  last = last + (beside and 2 or 1)
  local kept = rule.open and rule.open(key) or call("MGET", key)[1]
  local punished = beside and call("MGET", beside)[1]
  -- What is there instead: a value, a log; "" for nothing. Nil if it stays as it is.
  local change
  if spent == FORGOTTEN then
    change = ""
    if punished then call("DEL", beside) end
    punished = nil
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
  if punished then
    _, _, _, allowed, remaining, retry_after, reset_after, delay = weigh(penalties[penalty], punished, false, now, 0, rule,
      kept, allowed, remaining, retry_after, reset_after, delay)
  end
  answered = answered + 1
  reply[answered] = pack(">i8i8i8i8i8", allowed, remaining, retry_after, reset_after, delay)
end
return table.concat(reply)
