-- Keeps what has changed. State and expiry go in one command, or in one script: no key without an expiry.
local function write(key, state, reset_after)
  local ttl_ms = div_ceil(reset_after, 1000) + slack_ms
  if ttl_ms < 1 then ttl_ms = 1 end
  if type(state) == "table" then state.write(state, ttl_ms) else call("SET", key, state, "PX", ttl_ms) end
end
