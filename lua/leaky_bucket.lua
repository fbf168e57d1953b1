-- Leaky bucket: drains steadily, makes what is allowed wait its turn. Rust twin: src/decide/leaky_bucket.rs.
--
-- numbers  a bucket's, and max_wait (µs, 7 bytes; -1 for none)
if leaky_buckets > 0 then
  -- How much longer than it may a wait would be.
  local function too_long_by(meter, wait)
    return meter.max_wait >= 0 and wait > meter.max_wait and wait - meter.max_wait or 0
  end

  local function answer(meter, debt, stamp, now, allowed, retry_after, delay)
    local drained_after = micros_to_earn(meter, debt, stamp, now)
    local is_patient = too_long_by(meter, drained_after) == 0
    return allowed, is_patient and room(meter, debt) or 0, retry_after, drained_after, delay
  end

  local function decide(meter, kept, now, cost)
    local debt, stamp, stepped_back = owed(meter, kept, now)
    local delay = micros_to_earn(meter, debt, stamp, now)
    if cost == 0 then return nil, answer(meter, debt, stamp, now, 1, 0, delay) end
    local never = cost > meter.burst
    local price = (never and meter.burst or cost) * meter.unit
    local excess = debt + price - meter.capacity
    local too_long = too_long_by(meter, delay)

    if not never and excess <= 0 and too_long == 0 then
      local charged, since = charge(meter, debt, stamp, price, now)
      return pack(">I7I7I6", charged, since, meter.unit), answer(meter, charged, since, now, 1, 0, delay)
    end
    local wait = excess > 0 and micros_to_earn(meter, excess, stamp, now) or 0
    local retry_after = never and -1 or max(wait, too_long)
    local repaired = stepped_back and pack(">I7I7I6", debt, stamp, meter.unit) or nil
    return repaired, answer(meter, debt, stamp, now, 0, retry_after, 0)
  end

  local refund
  if settles then
    -- Gives back what `charged` took, if nobody has come after it, so that the queue still ends where it ended then:
    -- the turns of those who wait stand.
    function refund(meter, kept, charged, now)
      local debt, stamp = owed(meter, kept, now)
      local drained = now + micros_to_earn(meter, debt, stamp, now)
      if drained ~= charged.at + charged.reset_after then return nil end
      return give_back(meter, kept, charged, now)
    end
  end

  for _ = 1, leaky_buckets do
    local burst, unit, refill, tick_us, debt_max, max_wait
    burst, unit, refill, tick_us, debt_max, max_wait, at = unpack(">I7I7I7I7I7i7", asked, at)
    rules[#rules + 1] = {
      decide = decide,
      refund = refund,
      charge_late = charge_late,
      burst = burst,
      unit = unit,
      refill = refill,
      tick_us = tick_us,
      debt_max = debt_max,
      capacity = burst * unit,
      max_wait = max_wait,
    }
  end
end
