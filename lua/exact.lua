-- Whole numbers that stay exact. Rust twin: src/decide/exact.rs.
--
-- A Lua number is a double: it holds every whole number up to EXACT_MAX. A quotient is rounded, but its whole part is
-- right as long as both numbers together are no more than that, and `%` with it.
local USED_MAX = 281474976710655
local min, max, tonumber, call = math.min, math.max, tonumber, redis.call
local pack, unpack = struct.pack, struct.unpack

local function div(a, b)
  return (a - a % b) / b
end

local function div_ceil(a, b)
  local rest = a % b
  if rest > 0 then return (a - rest) / b + 1 end
  return a / b
end

-- How many bytes a count takes.
local function width_of(count)
  local width = 1
  while count >= 256 ^ width do width = width + 1 end
  return width
end

-- What a string key holds; nothing if it holds something that we did not write.
local function get(key)
  local kept = redis.pcall("GET", key)
  if type(kept) == "string" then return kept end
  if kept and kept.err and not string.find(kept.err, "WRONGTYPE", 1, true) then return call("GET", key) end
  return nil
end

-- An instant (µs): the argument, or the server's clock if that is empty.
local function instant(arg)
  local given = tonumber(ARGV[arg])
  if given then return given end
  local t = call("TIME")
  return t[1] * 1000000 + t[2]
end

-- The kinds by name. Each is made when it is first asked for: a call pays for the kinds that it names.
local kinds, made = {}, {}

local function kind_named(name)
  local kind = made[name]
  if not kind then
    kind = kinds[name]()
    made[name] = kind
  end
  return kind
end
