-- Whole numbers that stay exact. Rust twin: src/decide/exact.rs.
--
-- A Lua number is a double: it holds every whole number up to EXACT_MAX. A quotient is rounded, but its whole part is
-- right as long as both numbers together are no more than that, and `%` with it.
--
-- A call makes every function, every table and every string that it comes across: of a kind, only where it is named.
local min, max, call = math.min, math.max, redis.call
local spread, pack, unpack = unpack, struct.pack, struct.unpack
-- The most that a count of units can come to: six bytes.
local USED_MAX = 281474976710655

local function div(a, b)
  return (a - a % b) / b
end

local function div_ceil(a, b)
  local rest = a % b
  if rest > 0 then return (a - rest) / b + 1 end
  return a / b
end
