-- Sliding counter: estimates the last window from two fixed ones. Rust twin: src/decide/sliding_counter.rs.
--
-- value    which window since the epoch (6 bytes), units used in it, units used in the one before (as many bytes each
--          as the larger takes, at most 6), big-endian
-- numbers  limit (units), window (µs), tick (µs), count_max (units)
kinds["sliding-counter"] = function()
  local sliding_counter = { numbers = 4 }

  function sliding_counter.rule(arg)
    local window_us, tick_us = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
    return {
      limit = tonumber(ARGV[arg]),
      window_us = window_us,
      tick_us = tick_us,
      ticks = window_us / tick_us,
      count_max = tonumber(ARGV[arg + 3]),
    }
  end

  function sliding_counter.read(key)
    local value = get(key)
    if not value or #value < 8 or #value > 18 or #value % 2 == 1 then return nil end
    local width = (#value - 6) / 2
    local id, current, previous = unpack(">I6I" .. width .. "I" .. width, value)
    return { id = id, current = current, previous = previous }
  end

  local function pack_counts(id, current, previous)
    local width = width_of(max(current, previous))
    return pack(">I6I" .. width .. "I" .. width, id, current, previous)
  end

  -- The counts as of the window that `now` is in.
  local function counts_at(rule, kept, now)
    local id = div(now, rule.window_us)
    local current, previous = 0, 0
    if kept and kept.id >= id then
      current, previous = kept.current, kept.previous
    elseif kept and kept.id + 1 == id then
      previous = kept.current
    end
    return id, min(current, rule.count_max), min(previous, rule.count_max)
  end

  -- The first tick of a window at which no more than `room` of the `previous` one is inside.
  local function fades_at(rule, previous, room)
    if previous <= room then return 0 end
    local too_many = div_ceil((room + 1) * rule.ticks, previous)
    return rule.ticks - too_many + 1
  end

  function sliding_counter.decide(rule, kept, now, cost)
    local id, current, previous = counts_at(rule, kept, now)
    local since_start = now % rule.window_us
    local ends_after = rule.window_us - since_start
    local function keep(count)
      return pack_counts(id, count, previous)
    end
    -- What counts now: all of the current window, and the share of the previous one that is inside.
    local function estimate(count)
      local elapsed = div(since_start, rule.tick_us)
      return count + div(previous * (rule.ticks - elapsed), rule.ticks)
    end
    local function answer(allowed, count, retry_after)
      local reset_after = 0
      if count > 0 then
        reset_after = ends_after + rule.window_us
      elseif previous > 0 then
        reset_after = ends_after
      end
      return allowed, max(rule.limit - estimate(count), 0), retry_after, reset_after, 0
    end
    -- How long until `cost` is allowed, in this window or in the next, where the current count is the previous one.
    local function wait()
      local room = rule.limit - cost
      if room >= current then
        local elapsed = fades_at(rule, previous, room - current)
        if elapsed < rule.ticks then return elapsed * rule.tick_us - since_start end
      end
      return ends_after + fades_at(rule, current, room) * rule.tick_us
    end
    if cost == 0 then return nil, answer(1, current, 0) end
    local charged = current + cost

    if estimate(charged) <= rule.limit then
      return keep(charged), answer(1, charged, 0)
    end
    local retry_after = cost <= rule.limit and wait() or -1
    -- A window that begins later means that the clock stepped back: what it counted counts in this one.
    local repaired = kept and kept.id > id and keep(current) or nil
    return repaired, answer(0, current, retry_after)
  end
  -- Gives back what `charge` took, from the window that it was in.
  function sliding_counter.refund(rule, kept, charge)
    if not kept then return nil, nil end
    local charged_id = div(charge.at, rule.window_us)
    local current, previous = kept.current, kept.previous
    if charged_id == kept.id then
      current = max(current - charge.cost, 0)
    elseif charged_id + 1 == kept.id then
      previous = max(previous - charge.cost, 0)
    else
      return kept, nil
    end
    if current == 0 and previous == 0 then return nil, "" end
    return { id = kept.id, current = current, previous = previous }, pack_counts(kept.id, current, previous)
  end
  return sliding_counter
end
