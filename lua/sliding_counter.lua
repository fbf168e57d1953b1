-- Sliding counter: estimates the last window from two fixed ones. Rust twin: src/decide/sliding_counter.rs.
--
-- value    which window since the epoch (6 bytes), units used in it, units used in the one before (as many bytes each
--          as the larger takes, at most 6), big-endian
-- numbers  limit (units), window (µs), tick (µs), count_max (units): 7 bytes each
if sliding_counters > 0 then
  -- How counts are written that take so many bytes.
  local function format_of(width)
    if width < 4 then return width == 1 and ">I6I1I1" or width == 2 and ">I6I2I2" or ">I6I3I3" end
    return width == 4 and ">I6I4I4" or width == 5 and ">I6I5I5" or ">I6I6I6"
  end

  -- What is kept: which window, units used in it, units used in the one before. Nothing if there is none.
  local function read(kept)
    if not kept or #kept < 8 or #kept > 18 or #kept % 2 == 1 then return nil, 0, 0 end
    return unpack(format_of((#kept - 6) / 2), kept)
  end

  local function keep(id, current, previous)
    return pack(format_of(width_of(max(current, previous))), id, current, previous)
  end

  -- What counts now: all of the current window, and the share of the previous one that is inside.
  local function estimate(rule, current, previous, since_start)
    local elapsed = div(since_start, rule.tick_us)
    return current + div(previous * (rule.ticks - elapsed), rule.ticks)
  end

  local function answer(rule, current, previous, since_start, allowed, retry_after)
    local ends_after = rule.window_us - since_start
    local reset_after = 0
    if current > 0 then
      reset_after = ends_after + rule.window_us
    elseif previous > 0 then
      reset_after = ends_after
    end
    local left = rule.limit - estimate(rule, current, previous, since_start)
    return allowed, left > 0 and left or 0, retry_after, reset_after, 0
  end

  -- The counts as of the window that `now` is in, and whether the kept one begins later than that.
  local function counts_at(rule, kept, now)
    local id = div(now, rule.window_us)
    local kept_id, current, previous = read(kept)
    if not kept_id or kept_id + 1 < id then
      current, previous = 0, 0
    elseif kept_id < id then
      current, previous = 0, current
    end
    return id, min(current, rule.count_max), min(previous, rule.count_max), kept_id and kept_id > id
  end

  -- The first tick of a window at which no more than `room` of the `previous` one is inside.
  local function fades_at(rule, previous, room)
    if previous <= room then return 0 end
    local too_many = div_ceil((room + 1) * rule.ticks, previous)
    return rule.ticks - too_many + 1
  end

  -- How long until `cost` is allowed, in this window or in the next, where the current count is the previous one.
  local function wait(rule, current, previous, since_start, cost)
    local room = rule.limit - cost
    if room >= current then
      local elapsed = fades_at(rule, previous, room - current)
      if elapsed < rule.ticks then return elapsed * rule.tick_us - since_start end
    end
    return rule.window_us - since_start + fades_at(rule, current, room) * rule.tick_us
  end

  local function decide(rule, kept, now, cost)
    local id, current, previous, stepped_back = counts_at(rule, kept, now)
    local since_start = now % rule.window_us
    if cost == 0 then return nil, answer(rule, current, previous, since_start, 1, 0) end
    local charged = current + cost

    if estimate(rule, charged, previous, since_start) <= rule.limit then
      return keep(id, charged, previous), answer(rule, charged, previous, since_start, 1, 0)
    end
    local retry_after = cost <= rule.limit and wait(rule, current, previous, since_start, cost) or -1
    -- A window that begins later means that the clock stepped back: what it counted counts in this one.
    local repaired = stepped_back and keep(id, current, previous) or nil
    return repaired, answer(rule, current, previous, since_start, 0, retry_after)
  end

  local refund, charge_late
  if settles then
    -- Gives back what `charged` took, from the window that it was in.
    function refund(rule, kept, charged)
      local id, current, previous = read(kept)
      if not id then return nil end
      local charged_id = div(charged.at, rule.window_us)
      if charged_id == id then
        current = max(current - charged.cost, 0)
      elseif charged_id + 1 == id then
        previous = max(previous - charged.cost, 0)
      else
        return nil
      end
      return (current > 0 or previous > 0) and keep(id, current, previous) or ""
    end

    -- Charges `cost` whatever the limit.
    function charge_late(rule, kept, cost, now)
      local id, current, previous = counts_at(rule, kept, now)
      return keep(id, min(current + cost, rule.count_max), previous)
    end
  end

  for _ = 1, sliding_counters do
    local limit, window_us, tick_us, count_max
    limit, window_us, tick_us, count_max, at = unpack(">I7I7I7I7", asked, at)
    rules[#rules + 1] = {
      decide = decide,
      refund = refund,
      charge_late = charge_late,
      limit = limit,
      window_us = window_us,
      tick_us = tick_us,
      ticks = window_us / tick_us,
      count_max = count_max,
    }
  end
end
