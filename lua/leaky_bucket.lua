-- Leaky bucket: drains steadily, makes what is allowed wait its turn. Rust twin: src/decide/leaky_bucket.rs.
--
-- numbers  a bucket's, and max_wait (µs; -1 for none)
local leaky_bucket = { numbers = bucket.numbers + 1, read = bucket.read }

function leaky_bucket.rule(arg)
  local meter = bucket.rule(arg)
  meter.max_wait = tonumber(ARGV[arg + bucket.numbers])
  return meter
end

function leaky_bucket.decide(meter, kept, now, cost)
  local debt, stamp, stepped_back = bucket.owed(meter, kept, now)
  local function too_long_by(wait)
    return meter.max_wait >= 0 and max(wait - meter.max_wait, 0) or 0
  end
  local function answer(allowed, owed, retry_after, delay)
    local drained_after = bucket.micros_to_earn(meter, owed, stamp, now)
    local remaining = too_long_by(drained_after) > 0 and 0 or bucket.room(meter, owed)
    return allowed, remaining, retry_after, drained_after, delay
  end
  local delay = bucket.micros_to_earn(meter, debt, stamp, now)
  if cost == 0 then return nil, answer(1, debt, 0, delay) end
  local never = cost > meter.burst
  local charged = debt + min(cost, meter.burst) * meter.unit
  local too_long = too_long_by(delay)

  if not never and charged <= meter.capacity and too_long == 0 then
    local keep = bucket.keep(meter, charged, stamp)
    return keep, answer(1, charged, 0, delay)
  end
  local excess = charged - meter.capacity
  local wait = excess > 0 and bucket.micros_to_earn(meter, excess, stamp, now) or 0
  local retry_after = never and -1 or max(wait, too_long)
  local repaired = stepped_back and bucket.keep(meter, debt, stamp) or nil
  return repaired, answer(0, debt, retry_after, 0)
end
