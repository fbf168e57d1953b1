-- Token bucket: refills steadily, lets a burst through. Rust twin: src/decide/token_bucket.rs, line for line.
--
-- numbers  a bucket's
if token_buckets > 0 then
  local function answer(meter, debt, stamp, now, allowed, retry_after)
    return allowed, room(meter, debt), retry_after, micros_to_earn(meter, debt, stamp, now), 0
  end

  local function decide(meter, kept, now, cost)
    local debt, stamp, stepped_back = owed(meter, kept, now)
    if cost == 0 then return nil, answer(meter, debt, stamp, now, 1, 0) end
    local never = cost > meter.burst
    local price = (never and meter.burst or cost) * meter.unit
    local excess = debt + price - meter.capacity

    if not never and excess <= 0 then
      local charged, since = charge(meter, debt, stamp, price, now)
      return pack(">I7I7I6", charged, since, meter.unit), answer(meter, charged, since, now, 1, 0)
    end
    local retry_after = never and -1 or micros_to_earn(meter, excess, stamp, now)
    local repaired = stepped_back and pack(">I7I7I6", debt, stamp, meter.unit) or nil
    return repaired, answer(meter, debt, stamp, now, 0, retry_after)
  end

  for _ = 1, token_buckets do
    local burst, unit, refill, tick_us, debt_max
    burst, unit, refill, tick_us, debt_max, at = unpack(">I7I7I7I7I7", asked, at)
    rules[#rules + 1] = {
      decide = decide,
      refund = give_back,
      charge_late = charge_late,
      burst = burst,
      unit = unit,
      refill = refill,
      tick_us = tick_us,
      debt_max = debt_max,
      capacity = burst * unit,
    }
  end
end
