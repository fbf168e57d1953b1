-- What both buckets are made of: a debt that is paid back at a steady rate. Rust twin: src/decide/bucket.rs.
--
-- value    debt (credit owed at stamp, 7 bytes), stamp (µs, 7), unit that it is counted in (6), all big-endian
-- numbers  burst (units), unit (credit that one unit costs), refill (credit a tick), tick (µs), debt_max (credit): 7
--          bytes each
local owed, charge, micros_to_earn, room, give_back, charge_late
if token_buckets + leaky_buckets > 0 then
  -- What is still owed at `now`: the debt, the last tick before now, and whether the kept stamp was later than now.
  function owed(meter, kept, now)
    if not kept or #kept ~= 20 then return 0, now, false end
    local debt, stamp, unit = unpack(">I7I7I6", kept)
    if unit == 0 then return 0, now, false end
    -- A stamp from the future means that the clock stepped back: read it as if it were now.
    local stepped_back = stamp > now
    if stepped_back then stamp = now end
    if unit ~= meter.unit then
      -- What an edited limit finds is carried over as used units, rounded up.
      debt = min(div_ceil(debt, unit), div(meter.debt_max, meter.unit)) * meter.unit
    elseif debt > meter.debt_max then
      debt = meter.debt_max
    end
    local refill, tick_us = meter.refill, meter.tick_us
    local elapsed = div(now - stamp, tick_us)
    -- Compared first, so that the product stays exact however long nobody called.
    if elapsed >= div_ceil(debt, refill) then return 0, now, stepped_back end
    return debt - elapsed * refill, stamp + elapsed * tick_us, stepped_back
  end

  -- What is kept once `price` is charged: the debt, and its stamp.
  --
  -- The phase of the ticks stays, so that no part of a tick is lost. But a debt that the tick under way pays off earns
  -- nothing for the rest of that tick: then it is paid by the microsecond, and ticks begin now.
  function charge(meter, debt, stamp, price, now)
    local under_way = now - stamp
    if debt >= meter.refill or under_way == 0 then return debt + price, stamp end
    local refill, tick_us = meter.refill, meter.tick_us
    -- refill * under_way / tick_us, in products that stay exact.
    local odd = div(refill % tick_us * under_way, tick_us)
    local earned = div(refill, tick_us) * under_way + odd
    return (debt > earned and debt - earned or 0) + price, now
  end

  -- Time to earn `credit`. Rounded up: an answer is never early.
  function micros_to_earn(meter, credit, stamp, now)
    local ticks = div_ceil(credit, meter.refill)
    local wait = ticks * meter.tick_us - (now - stamp)
    return wait > 0 and wait or 0
  end

  -- Units that fit on top of `debt`.
  function room(meter, debt)
    local left = meter.capacity - debt
    return left > 0 and div(left, meter.unit) or 0
  end

  if settles then
    -- Gives back what `charged` took, but for what has been refilled since.
    --
    -- Some of that would have been refilled without it, too, or all. But nobody knows what the bucket would have come
    -- to without others that were given back, and to give back too much is to let more pass than the limit.
    function give_back(meter, kept, charged, now)
      if not kept or #kept ~= 20 then return nil end
      local debt, stamp = owed(meter, kept, now)
      local price = charged.cost * meter.unit
      local ticks = div_ceil(max(now - charged.at, 0), meter.tick_us)
      -- Capped, so that the product stays exact however late it is given back.
      local refilled = min(ticks, div_ceil(price, meter.refill)) * meter.refill
      debt = max(debt - max(price - refilled, 0), 0)
      return debt > 0 and pack(">I7I7I6", debt, stamp, meter.unit) or ""
    end

    -- Charges `cost` whatever the burst, as far as the debt can be told apart.
    function charge_late(meter, kept, cost, now)
      local debt, stamp = owed(meter, kept, now)
      local units = min(cost, div(meter.debt_max - debt, meter.unit))
      local charged, since = charge(meter, debt, stamp, units * meter.unit, now)
      return pack(">I7I7I6", charged, since, meter.unit)
    end
  end
end
