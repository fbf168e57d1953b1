-- Decides whole requests: every check of one is charged, or none. Rust twin: src/decide/all.rs.
--
-- KEYS   what checks are about, each once
-- asked  then the checks, 11 bytes each: number of its key (2), number of its rule (2), cost (units, 6), and one byte:
--        whether it is enforced (1), whether it is the last of its request (2), whether a penalty stands beside it (4),
--        and whether a denial begins that (8), as a sum; 4 bytes more of a penalty: number of its key (2), and its own (2)
-- reply  now (µs), then for each check: allowed (0|1; 2 more while a penalty runs, 4 more where it begins one), remaining
--        (units), retry_after (µs; -1 never), reset_after (µs), delay (µs): 8 bytes each
--
-- All of them stand at one instant. Requests are decided one after the other, as if each had come alone: what one keeps
-- is what the next finds. It is written once, at the end.
-- Whole numbers only, all below 2^53: a Lua number holds them exactly.

-- A single check needs no tables.
if #asked == at + 10 then
  local _, _, cost = unpack(">I2I2I6", asked, at)
  local rule, key = rules[1], KEYS[1]
  local state = rule.open and rule.open(key) or call("MGET", key)[1]
  local change, allowed, remaining, retry_after, reset_after, delay = rule.decide(rule, state, now, cost)
  if change then write(key, rule.keep and rule.keep(rule, state, change, now) or change, reset_after) end
  return pack(">i8i8i8i8i8i8", now, allowed, remaining, retry_after, reset_after, delay)
end

-- What is kept, by the number of its key: values, read at once, and what is more than a value, each opened when it is
-- first asked about.
local kept = #rules + penalty_count > sliding_logs + concurrencies and call("MGET", spread(KEYS)) or {}
-- With room for a few: a table that grows is made anew.
-- Of what has changed, how long until it means nothing any more (µs).
local resets = { false, false, false, false }
local reply, answered = { pack(">i8", now), "", "", "" }, 1
-- Of a request: its checks' rules and keys, and what they came to.
local rule_of, key_of, changes = { 0, 0, 0, 0 }, { 0, 0, 0, 0 }, { 0, 0, 0, 0 }
local verdicts, afters = { 0, 0, 0, 0 }, { 0, 0, 0, 0 }

while at <= #asked do
  local count, denied, flags = 0, false, 0
  repeat
    local key, number, cost
    key, number, cost, flags, at = unpack(">I2I2I6B", asked, at)
    local rule = rules[number]
    if rule.open and type(kept[key]) ~= "table" then kept[key] = rule.open(KEYS[key]) end
    local change, allowed, remaining, retry_after, reset_after, delay = rule.decide(rule, kept[key], now, cost)
    count, answered = count + 1, answered + 1
    rule_of[count], key_of[count], changes[count], afters[count] = rule, key, change, reset_after
    if flags >= 4 then
      local beside, penalty, punished, lasts, stands
      beside, penalty, at = unpack(">I2I2", asked, at)
      punished, lasts, stands, allowed, remaining, retry_after, reset_after, delay = weigh(penalties[penalty],
        kept[beside], flags >= 8, now, cost, rule, kept[key], allowed, remaining, retry_after, reset_after, delay)
      if punished then kept[beside], resets[beside] = punished, lasts end
      if not stands then changes[count] = nil end
    end
    local allows = allowed % 2
    if allows == 0 and flags % 2 == 1 then denied = true end
    verdicts[count] = allows
    reply[answered] = pack(">i8i8i8i8i8", allowed, remaining, retry_after, reset_after, delay)
  until flags % 4 >= 2
  for i = 1, count do
    local rule, key, change = rule_of[i], key_of[i], changes[i]
    if change and denied and verdicts[i] == 1 then
      -- What is spared is answered as if it had only looked.
      local _, allowed, remaining, retry_after, reset_after, delay = rule.decide(rule, kept[key], now, 0)
      reply[answered - count + i] = pack(">i8i8i8i8i8", allowed, remaining, retry_after, reset_after, delay)
    elseif change then
      kept[key] = rule.keep and rule.keep(rule, kept[key], change, now) or change
      resets[key] = afters[i]
    end
  end
end

for key, name in ipairs(KEYS) do
  if resets[key] then write(name, kept[key], resets[key]) end
end
return table.concat(reply)
