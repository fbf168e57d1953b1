-- Fixed window: counts from one edge to the next. Rust twin: src/decide/fixed_window.rs, line for line.
--
-- value    start of the window (µs, 7 bytes), units used in it (the fewest bytes, at most 6), big-endian
-- numbers  limit (units, 7 bytes), window (µs, 7), anchored to the epoch (1) or to the first request (0)
if fixed_windows > 0 then
  -- How a window is written whose count takes so many bytes.
  local function format_of(width)
    if width < 4 then return width == 1 and ">I7I1" or width == 2 and ">I7I2" or ">I7I3" end
    return width == 4 and ">I7I4" or width == 5 and ">I7I5" or ">I7I6"
  end

  -- The kept window: when it began, and units used in it. Nothing if there is none.
  local function read(kept)
    if not kept or #kept < 8 or #kept > 13 then return nil, 0 end
    return unpack(format_of(#kept - 7), kept)
  end

  local function keep(start, used)
    return pack(format_of(width_of(used)), start, used)
  end

  local function is_open(rule, start, now)
    return now - start < rule.window_us
  end

  local function answer(rule, start, used, now, allowed, retry_after)
    local begun = used > 0 or rule.to_epoch
    local remaining = used < rule.limit and rule.limit - used or 0
    return allowed, remaining, retry_after, begun and rule.window_us - (now - start) or 0, 0
  end

  -- The window that `now` is in, what is used of it, and whether the kept one begins later than now.
  local function window_at(rule, kept, now)
    local kept_start, kept_used = read(kept)
    local start, used = now, 0
    if rule.to_epoch then
      start = now - now % rule.window_us
      if kept_start and kept_start >= start then used = kept_used end
    elseif kept_start and is_open(rule, kept_start, now) then
      start, used = min(kept_start, now), kept_used
    end
    return start, used, kept_start and kept_start > now
  end

  local function decide(rule, kept, now, cost)
    local start, used, stepped_back = window_at(rule, kept, now)
    if cost == 0 then return nil, answer(rule, start, used, now, 1, 0) end
    local charged = used + cost

    if charged <= rule.limit then
      return keep(start, charged), answer(rule, start, charged, now, 1, 0)
    end
    local retry_after = cost <= rule.limit and rule.window_us - (now - start) or -1
    -- A window that begins later means that the clock stepped back: what it counted counts in this one.
    local repaired = stepped_back and keep(start, used) or nil
    return repaired, answer(rule, start, used, now, 0, retry_after)
  end

  local refund, charge_late
  if settles then
    -- Gives back what `charged` took, if that was in this window and it has not ended.
    function refund(rule, kept, charged, now)
      local start, used = read(kept)
      if not start or not is_open(rule, start, now) then return nil end
      if charged.at < start or not is_open(rule, start, charged.at) then return nil end
      used = max(used - charged.cost, 0)
      return used > 0 and keep(start, used) or ""
    end

    -- Charges `cost` whatever the limit.
    function charge_late(rule, kept, cost, now)
      local start, used = window_at(rule, kept, now)
      return keep(start, min(used + cost, USED_MAX))
    end
  end

  for _ = 1, fixed_windows do
    local limit, window_us, to_epoch
    limit, window_us, to_epoch, at = unpack(">I7I7B", asked, at)
    rules[#rules + 1] = {
      decide = decide,
      refund = refund,
      charge_late = charge_late,
      limit = limit,
      window_us = window_us,
      to_epoch = to_epoch == 1,
    }
  end
end
