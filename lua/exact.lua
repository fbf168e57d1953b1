-- Whole numbers that stay exact. Rust twin: src/decide/exact.rs.
--
-- A Lua number is a double: it holds every whole number up to EXACT_MAX, and a quotient of two may be off by one once
-- rounded. So divide what divides evenly.
local EXACT_MAX = 9007199254740991
local USED_MAX = 281474976710655
local fmod, min, max = math.fmod, math.min, math.max

local function div(a, b)
  return (a - fmod(a, b)) / b
end

local function div_ceil(a, b)
  local rest = fmod(a, b)
  if rest > 0 then return (a - rest) / b + 1 end
  return a / b
end

-- What a string key holds; nothing if it holds something that we did not write.
local function get(key)
  local kept = redis.pcall("GET", key)
  if type(kept) == "string" then return kept end
  if kept and kept.err and not string.find(kept.err, "WRONGTYPE", 1, true) then return redis.call("GET", key) end
  return nil
end
