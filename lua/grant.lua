-- Grants a caller another limit of a policy for a while, or takes that back. What has ended goes.
--
-- KEYS   1 the grants: a hash of who and which policy, by the end (µs) and the limit; and `version`
-- ARGV   1 who and which policy   2 the limit; "" takes it back   3 for how long (ms)   4 the most that are kept
-- reply  when the grant ends (µs); 0 once it is taken back; -1 if there was none; -2 if too many are there
local grants, who, limit = KEYS[1], ARGV[1], ARGV[2]
local for_ms, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local t = redis.call("TIME")
local now = t[1] * 1000000 + t[2]

local found = redis.pcall("HGETALL", grants)
if found.err then
  -- Something that we did not write.
  if not string.find(found.err, "WRONGTYPE", 1, true) then return found end
  redis.call("DEL", grants)
  found = {}
end
local version, last, others, gone, was_there = 0, 0, 0, {}, false
for i = 1, #found, 2 do
  local field, value = found[i], found[i + 1]
  local ends = tonumber(string.match(value, "^%d+") or "0")
  if field == "version" then
    version = ends
  elseif ends <= now then
    gone[#gone + 1] = field
  elseif field == who then
    was_there = true
  else
    others = others + 1
    if ends > last then last = ends end
  end
end

local reply = was_there and 0 or -1
if limit ~= "" then
  if others >= most then return -2 end
  reply = now + for_ms * 1000
  if reply > last then last = reply end
end
if last == 0 then
  redis.call("DEL", grants)
  return reply
end
for _, field in ipairs(gone) do redis.call("HDEL", grants, field) end
if limit == "" then
  redis.call("HDEL", grants, who)
else
  redis.call("HSET", grants, who, string.format("%.0f ", reply) .. limit)
end
-- Later than any before, even of a hash that is gone.
redis.call("HSET", grants, "version", string.format("%.0f", math.max(now, version + 1)))
local expires = redis.pcall("PEXPIRE", grants, math.ceil((last - now) / 1000) + 1000)
if type(expires) == "table" then
  -- A server that permits no expiry gets no key either.
  redis.call("DEL", grants)
  return expires
end
return reply
