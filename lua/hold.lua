-- Says what a gateway holds of concurrency: so many units more or less than it said last, and that it still holds them.
--
-- KEYS   one for each, each once
-- asked  then for each key: number of its rule (2 bytes), units more, or less if that is below 0 (8)
-- reply  now, then for each key, in the form of a decision: 1, the units that are held then, 0, 0, 0
local reply = { pack(">i8", now) }

for number, key in ipairs(KEYS) do
  local rule, more
  rule, more, at = unpack(">I2i8", asked, at)
  rule = rules[rule]
  local slots = rule.open(key)
  local units = rule.hold(rule, slots, more)
  slots.write(slots)
  reply[number + 1] = pack(">i8i8i8i8i8", 1, units, 0, 0, 0)
end
return table.concat(reply)
