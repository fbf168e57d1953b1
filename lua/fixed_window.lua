-- Fixed window: counts from one edge to the next. Rust twin: src/decide/fixed_window.rs, line for line.
--
-- value    start of the window (µs, 7 bytes), units used in it (the fewest bytes, at most 6), big-endian
-- numbers  limit (units), window (µs), anchored to the epoch (1) or to the first request (0)
kinds["fixed-window"] = function()
  local fixed_window = { numbers = 3 }

  function fixed_window.rule(arg)
    return {
      limit = tonumber(ARGV[arg]),
      window_us = tonumber(ARGV[arg + 1]),
      to_epoch = ARGV[arg + 2] == "1",
    }
  end

  function fixed_window.read(key)
    local value = get(key)
    if not value or #value < 8 or #value > 13 then return nil end
    local start, used = unpack(">I7I" .. (#value - 7), value)
    return { start = start, used = used }
  end

  local function pack_window(start, count)
    return pack(">I7I" .. width_of(count), start, count)
  end

  local function is_open(rule, kept, now)
    return max(now - kept.start, 0) < rule.window_us
  end

  -- The window that `now` is in, and what is used of it.
  local function window_at(rule, kept, now)
    local start, used = now, 0
    if rule.to_epoch then
      start = now - now % rule.window_us
      if kept and kept.start >= start then used = kept.used end
    elseif kept and is_open(rule, kept, now) then
      start, used = min(kept.start, now), kept.used
    end
    return start, min(used, USED_MAX)
  end

  function fixed_window.decide(rule, kept, now, cost)
    local start, used = window_at(rule, kept, now)
    local ends_after = rule.window_us - (now - start)
    local function keep(count)
      return pack_window(start, count)
    end
    local function answer(allowed, count, retry_after)
      local begun = count > 0 or rule.to_epoch
      return allowed, max(rule.limit - count, 0), retry_after, begun and ends_after or 0, 0
    end
    if cost == 0 then return nil, answer(1, used, 0) end
    local charged = used + cost

    if charged <= rule.limit then
      return keep(charged), answer(1, charged, 0)
    end
    local retry_after = cost <= rule.limit and ends_after or -1
    -- A window that begins later means that the clock stepped back: what it counted counts in this one.
    local repaired = kept and kept.start > now and keep(used) or nil
    return repaired, answer(0, used, retry_after)
  end
  -- Gives back what `charge` took, if that was in this window and it has not ended.
  function fixed_window.refund(rule, kept, charge, now)
    if not kept or not is_open(rule, kept, now) then return kept, nil end
    if charge.at < kept.start or not is_open(rule, kept, charge.at) then return kept, nil end
    local used = max(kept.used - charge.cost, 0)
    if used == 0 then return nil, "" end
    return { start = kept.start, used = used }, pack_window(kept.start, used)
  end
  return fixed_window
end
