-- Fixed window: counts from one edge to the next. Rust twin: src/decide/fixed_window.rs, line for line.
--
-- value    start of the window (µs, 7 bytes), units used in it (the fewest bytes, at most 6), big-endian
-- numbers  limit (units, 7 bytes), window (µs, 7), what the windows are aligned to: an entity's first request (0), the
--          epoch (1), or a calendar (2), and then four of its edges around now (s since the epoch, 4 bytes each)
--
-- Which edges those are a gateway's clock says; which of them now is between, only the server's. They are enough as
-- long as the two clocks are no further apart than a window is long.
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

  -- The calendar's window that `now` is in, and how long until it ends. Rust twin: src/decide/calendar.rs.
  --
  -- Beyond the edges, windows of nominal length go on from the nearest.
  local function calendar_window(rule, now)
    local edges, nominal = rule.edges, rule.window_us
    if now < edges[1] then
      local left = (edges[1] - now - 1) % nominal + 1
      return max(now + left - nominal, 0), left
    end
    for i = 1, #edges - 1 do
      if now < edges[i + 1] then return edges[i], edges[i + 1] - now end
    end
    local into = (now - edges[#edges]) % nominal
    return now - into, nominal - into
  end

  -- Whether the kept window, which is none of a calendar, has not ended at `now`.
  local function is_open(rule, start, now)
    return now - start < rule.window_us
  end

  local function answer(rule, used, left, allowed, retry_after)
    local begun = used > 0 or rule.is_aligned
    local remaining = used < rule.limit and rule.limit - used or 0
    return allowed, remaining, retry_after, begun and left or 0, 0
  end

  -- The window that `now` is in, how long until it ends, what is used of it, and whether the kept one begins later than
  -- now.
  local function window_at(rule, kept, now)
    local kept_start, kept_used = read(kept)
    local start, left, used = now, rule.window_us, 0
    if rule.is_aligned then
      if rule.edges then
        start, left = calendar_window(rule, now)
      else
        local into = now % rule.window_us
        start, left = now - into, rule.window_us - into
      end
      if kept_start and kept_start >= start then used = kept_used end
    elseif kept_start and is_open(rule, kept_start, now) then
      start, used = min(kept_start, now), kept_used
      left = rule.window_us - (now - start)
    end
    return start, left, used, kept_start and kept_start > now
  end

  local function decide(rule, kept, now, cost)
    local start, left, used, stepped_back = window_at(rule, kept, now)
    if cost == 0 then return nil, answer(rule, used, left, 1, 0) end
    local charged = used + cost

    if charged <= rule.limit then return keep(start, charged), answer(rule, charged, left, 1, 0) end
    local retry_after = cost <= rule.limit and left or -1
    -- A window that begins later means that the clock stepped back: what it counted counts in this one.
    local repaired = stepped_back and keep(start, used) or nil
    return repaired, answer(rule, used, left, 0, retry_after)
  end

  local refund, charge_late
  if settles then
    -- Whether what was charged at `at` counts in the kept window, and that has not ended at `now`.
    local function counts(rule, kept_start, at, now)
      if at < kept_start then return false end
      if not rule.edges then return is_open(rule, kept_start, now) and is_open(rule, kept_start, at) end
      local start, left = calendar_window(rule, now)
      -- One that begins later means that the clock stepped back: it counts in that of now.
      return kept_start > now or kept_start >= start and at - now < left
    end

    -- Gives back what `charged` took, if that was in this window and it has not ended.
    function refund(rule, kept, charged, now)
      local start, used = read(kept)
      if not start or not counts(rule, start, charged.at, now) then return nil end
      used = max(used - charged.cost, 0)
      return used > 0 and keep(start, used) or ""
    end

    -- Charges `cost` whatever the limit.
    function charge_late(rule, kept, cost, now)
      local start, _, used = window_at(rule, kept, now)
      return keep(start, min(used + cost, USED_MAX))
    end
  end

  for _ = 1, fixed_windows do
    local rule, anchor = { decide = decide, refund = refund, charge_late = charge_late }, nil
    rule.limit, rule.window_us, anchor, at = unpack(">I7I7B", asked, at)
    rule.is_aligned = anchor > 0
    if anchor == 2 then
      local edges = { unpack(">I4I4I4I4", asked, at) }
      at = edges[5]
      rule.edges = { edges[1] * 1000000, edges[2] * 1000000, edges[3] * 1000000, edges[4] * 1000000 }
    end
    rules[#rules + 1] = rule
  end
end
