-- Announces a gateway, and says how many are alive. Nothing is kept of one that has been silent for its lease.
--
-- KEYS   1 who is alive: a sorted set, instances by the end of their lease (ms)
-- ARGV   1 instance   2 lease (ms)   3 the most that are remembered
-- reply  how many are alive
--
-- It writes, so that a server that takes no writes refuses it as it would a decision.
local alive, instance = KEYS[1], ARGV[1]
local lease_ms, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local t = redis.call("TIME")
local now_ms = t[1] * 1000 + (t[2] - t[2] % 1000) / 1000

local trimmed = redis.pcall("ZREMRANGEBYSCORE", alive, "-inf", now_ms)
if type(trimmed) == "table" then
  -- Something that we did not write.
  if string.find(trimmed.err, "WRONGTYPE", 1, true) then redis.call("DEL", alive) else return trimmed end
end
-- A lease that ends later than one that begins now: the clock stepped back.
redis.call("ZREMRANGEBYSCORE", alive, "(" .. now_ms + lease_ms, "+inf")
if redis.call("ZCARD", alive) < most or redis.call("ZSCORE", alive, instance) then
  redis.call("ZADD", alive, now_ms + lease_ms, instance)
  -- A server that permits no expiry gets no key either.
  local expires = redis.pcall("PEXPIRE", alive, lease_ms)
  if type(expires) == "table" then
    redis.call("ZREM", alive, instance)
    return expires
  end
end
return redis.call("ZCARD", alive)
