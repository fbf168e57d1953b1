-- Token bucket: refills steadily, lets a burst through. Rust twin: src/decide/token_bucket.rs, line for line.
kinds["token-bucket"] = function()
  local bucket = make_bucket()
  local token_bucket = { numbers = bucket.numbers, rule = bucket.rule, read = bucket.read, refund = bucket.refund }

  function token_bucket.decide(meter, kept, now, cost)
    local debt, stamp, stepped_back = bucket.owed(meter, kept, now)
    local function answer(allowed, owed, since, retry_after)
      return allowed, bucket.room(meter, owed), retry_after, bucket.micros_to_earn(meter, owed, since, now), 0
    end
    if cost == 0 then return nil, answer(1, debt, stamp, 0) end
    local never = cost > meter.burst
    local price = min(cost, meter.burst) * meter.unit
    local excess = max(debt + price - meter.capacity, 0)

    if not never and excess == 0 then
      local charged, since = bucket.charge(meter, debt, stamp, price, now)
      return bucket.keep(meter, charged, since), answer(1, charged, since, 0)
    end
    local retry_after = never and -1 or bucket.micros_to_earn(meter, excess, stamp, now)
    local repaired = stepped_back and bucket.keep(meter, debt, stamp) or nil
    return repaired, answer(0, debt, stamp, retry_after)
  end
  return token_bucket
end
