-- Leaky bucket: drains steadily, makes what is allowed wait its turn. Rust twin: src/decide/leaky_bucket.rs.
--
-- numbers  a bucket's, and max_wait (µs; -1 for none)
kinds["leaky-bucket"] = function()
  local bucket = make_bucket()
  local leaky_bucket = { numbers = bucket.numbers + 1, read = bucket.read }

  function leaky_bucket.rule(arg)
    local meter = bucket.rule(arg)
    meter.max_wait = tonumber(ARGV[arg + bucket.numbers])
    return meter
  end

  function leaky_bucket.decide(meter, kept, now, cost)
    local debt, stamp, stepped_back = bucket.owed(meter, kept, now)
    -- How much longer than it may a wait would be.
    local function too_long_by(wait)
      return meter.max_wait >= 0 and max(wait - meter.max_wait, 0) or 0
    end
    local function answer(allowed, owed, since, retry_after, delay)
      local drained_after = bucket.micros_to_earn(meter, owed, since, now)
      local is_patient = too_long_by(drained_after) == 0
      return allowed, is_patient and bucket.room(meter, owed) or 0, retry_after, drained_after, delay
    end
    local delay = bucket.micros_to_earn(meter, debt, stamp, now)
    if cost == 0 then return nil, answer(1, debt, stamp, 0, delay) end
    local never = cost > meter.burst
    local price = min(cost, meter.burst) * meter.unit
    local excess = max(debt + price - meter.capacity, 0)
    local too_long = too_long_by(delay)

    if not never and excess == 0 and too_long == 0 then
      local charged, since = bucket.charge(meter, debt, stamp, price, now)
      return bucket.keep(meter, charged, since), answer(1, charged, since, 0, delay)
    end
    local wait = excess > 0 and bucket.micros_to_earn(meter, excess, stamp, now) or 0
    local retry_after = never and -1 or max(wait, too_long)
    local repaired = stepped_back and bucket.keep(meter, debt, stamp) or nil
    return repaired, answer(0, debt, stamp, retry_after, 0)
  end
  -- Gives back what `charge` took, if nobody has come after it, so that the queue still ends where it ended then: the
  -- turns of those who wait stand.
  function leaky_bucket.refund(meter, kept, charge, now)
    local debt, stamp = bucket.owed(meter, kept, now)
    local drained = now + bucket.micros_to_earn(meter, debt, stamp, now)
    if drained ~= charge.at + charge.reset_after then return kept, nil end
    return bucket.refund(meter, kept, charge, now)
  end
  return leaky_bucket
end
