-- Token bucket: refills steadily, lets a burst through. Rust twin: src/decide/token_bucket.rs, line for line.
local token_bucket = { numbers = bucket.numbers, rule = bucket.rule, read = bucket.read }

function token_bucket.decide(meter, kept, now, cost)
  local debt, stamp, stepped_back = bucket.owed(meter, kept, now)
  local function answer(allowed, owed, retry_after)
    return allowed, bucket.room(meter, owed), retry_after, bucket.micros_to_earn(meter, owed, stamp, now), 0
  end
  if cost == 0 then return nil, answer(1, debt, 0) end
  local never = cost > meter.burst
  local charged = debt + min(cost, meter.burst) * meter.unit

  if not never and charged <= meter.capacity then
    local keep = bucket.keep(meter, charged, stamp)
    return keep, answer(1, charged, 0)
  end
  local excess = charged - meter.capacity
  local retry_after = never and -1 or bucket.micros_to_earn(meter, excess, stamp, now)
  local repaired = stepped_back and bucket.keep(meter, debt, stamp) or nil
  return repaired, answer(0, debt, retry_after)
end
