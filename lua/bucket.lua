-- What both buckets are made of: a debt that is paid back at a steady rate. Rust twin: src/decide/bucket.rs.
--
-- value    debt (credit owed at stamp, 7 bytes), stamp (µs, 7), unit that it is counted in (6), all big-endian
-- numbers  burst (units), unit (credit that one unit costs), refill (credit a tick), tick (µs), debt_max (credit)
local function make_bucket()
  local bucket = { numbers = 5 }

  function bucket.rule(arg)
    local burst, unit = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
    return {
      burst = burst,
      unit = unit,
      refill = tonumber(ARGV[arg + 2]),
      tick_us = tonumber(ARGV[arg + 3]),
      debt_max = tonumber(ARGV[arg + 4]),
      capacity = burst * unit,
    }
  end

  function bucket.read(key)
    local value = get(key)
    if not value or #value ~= 20 then return nil end
    local debt, stamp, unit = unpack(">I7I7I6", value)
    if unit == 0 then return nil end
    return { debt = debt, stamp = stamp, unit = unit }
  end

  -- The kept debt. What an edited limit finds is carried over as used units, rounded up.
  local function in_own_unit(meter, kept)
    if kept.unit == meter.unit then return min(kept.debt, meter.debt_max) end
    local used = div_ceil(kept.debt, kept.unit)
    return min(used, div(meter.debt_max, meter.unit)) * meter.unit
  end

  -- What is still owed at `now`: the debt, the last tick before now, and whether the kept stamp was later than now.
  function bucket.owed(meter, kept, now)
    if not kept then return 0, now, false end
    -- A stamp from the future means that the clock stepped back: read it as if it were now.
    local stamp = min(kept.stamp, now)
    local stepped_back = kept.stamp > now
    local before = in_own_unit(meter, kept)
    local elapsed = div(now - stamp, meter.tick_us)
    -- Capped first, so that the product stays exact however long nobody called.
    local earning = min(elapsed, div_ceil(before, meter.refill))
    local debt = max(before - earning * meter.refill, 0)
    if debt == 0 then return debt, now, stepped_back end
    return debt, stamp + elapsed * meter.tick_us, stepped_back
  end

  -- What is owed once `price` is charged: the debt, and its stamp.
  --
  -- The phase of the ticks stays, so that no part of a tick is lost. But a debt that the tick under way pays off earns
  -- nothing for the rest of that tick: then it is paid by the microsecond, and ticks begin now.
  function bucket.charge(meter, debt, stamp, price, now)
    local under_way = now - stamp
    if debt >= meter.refill or under_way == 0 then return debt + price, stamp end
    local refill, tick_us = meter.refill, meter.tick_us
    -- refill * under_way / tick_us, in products that stay exact.
    local odd = div(refill % tick_us * under_way, tick_us)
    local earned = div(refill, tick_us) * under_way + odd
    return max(debt - earned, 0) + price, now
  end

  function bucket.keep(meter, debt, stamp)
    return pack(">I7I7I6", debt, stamp, meter.unit)
  end

  -- Time to earn `credit`. Rounded up: an answer is never early.
  function bucket.micros_to_earn(meter, credit, stamp, now)
    local ticks = div_ceil(credit, meter.refill)
    return max(ticks * meter.tick_us - (now - stamp), 0)
  end

  -- Gives back what `charge` took, but for what has been refilled since.
  --
  -- Some of that would have been refilled without it, too, or all. But nobody knows what the bucket would have come to
  -- without others that were given back, and to give back too much is to let more pass than the limit.
  function bucket.refund(meter, kept, charge, now)
    if not kept then return nil, nil end
    local owed, stamp = bucket.owed(meter, kept, now)
    local price = charge.cost * meter.unit
    local ticks = div_ceil(max(now - charge.at, 0), meter.tick_us)
    -- Capped, so that the product stays exact however late it is given back.
    local refilled = min(ticks, div_ceil(price, meter.refill)) * meter.refill
    local debt = max(owed - max(price - refilled, 0), 0)
    if debt == 0 then return nil, "" end
    return { debt = debt, stamp = stamp, unit = meter.unit }, bucket.keep(meter, debt, stamp)
  end

  -- Units that fit on top of `debt`.
  function bucket.room(meter, debt)
    return div(max(meter.capacity - debt, 0), meter.unit)
  end
  return bucket
end
