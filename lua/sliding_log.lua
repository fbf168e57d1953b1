-- Sliding log: remembers each request, and is exact. Rust twin: src/decide/sliding_log.rs.
--
-- value    a list of records: stamp (µs, 7 bytes), total (units charged up to and with this one, since ever and modulo
--          USED_MAX + 1; 6 bytes), big-endian. Record 0 is the newest that has left the window; the requests are 1, 2, …
-- numbers  limit (units), window (µs)
--
-- A refund rewrites the records after its own: REFUND_REACH of them at most.
local REFUND_REACH = 1000
kinds["sliding-log"] = function()
  local sliding_log = { numbers = 2 }

  function sliding_log.rule(arg)
    return { limit = tonumber(ARGV[arg]), window_us = tonumber(ARGV[arg + 1]) }
  end

  -- Units charged from one running total to a later one. Totals run round at USED_MAX.
  local function span(from, to)
    return (to - from) % (USED_MAX + 1)
  end

  local function pack_record(stamp, total)
    return pack(">I7I6", stamp, total % (USED_MAX + 1))
  end

  function sliding_log.read(key)
    local length = redis.pcall("LLEN", key)
    if type(length) ~= "number" then
      if not string.find(length.err, "WRONGTYPE", 1, true) then return call("LLEN", key) end
      return { key = key, count = 0, foreign = true, records = { [0] = { stamp = 0, total = 0 } } }
    end
    local log = { key = key, count = max(length - 1, 0), foreign = false, records = {} }
    if length == 0 then log.records[0] = { stamp = 0, total = 0 } end
    return log
  end

  -- Record `index`; one that we did not write counts as one that has left the window long ago.
  local function record_at(log, index)
    local record = log.records[index]
    if not record then
      local value = call("LINDEX", log.key, index)
      record = { stamp = 0, total = 0 }
      if value and #value == 13 then record.stamp, record.total = unpack(">I7I6", value) end
      log.records[index] = record
    end
    return record
  end

  -- The first record from `first` on of which `holds` is true, as it is of all after it. Gallops, since that is mostly
  -- near the front, then halves.
  local function first_from(log, first, holds)
    local low, step, high = first, 1, nil
    while not high do
      local probe = low + step - 1
      if probe > log.count then
        high = log.count + 1
      elseif holds(record_at(log, probe)) then
        high = probe
      else
        low, step = probe + 1, step * 2
      end
    end
    while low < high do
      local middle = math.floor((low + high) / 2)
      if holds(record_at(log, middle)) then high = middle else low = middle + 1 end
    end
    return low
  end

  -- The first record that is inside the window that ends now.
  local function first_inside(rule, log, now)
    return first_from(log, 1, function(r) return now - r.stamp < rule.window_us end)
  end

  function sliding_log.decide(rule, log, now, cost)
    local first = first_inside(rule, log, now)
    local tail = record_at(log, log.count)
    local base = record_at(log, first - 1).total
    local used = span(base, tail.total)
    local last = min(tail.stamp, now)
    -- How long until what was stamped then is out of the window.
    local function leaves_after(stamp)
      return max(rule.window_us - (now - stamp), 0)
    end
    local function answer(allowed, count, stamp, retry_after)
      return allowed, max(rule.limit - count, 0), retry_after, count > 0 and leaves_after(stamp) or 0, 0
    end
    if cost == 0 then return nil, answer(1, used, last, 0) end
    local charged = used + cost

    if charged <= rule.limit then
      return { first = first, total = tail.total + cost }, answer(1, charged, now, 0)
    end
    local retry_after = -1
    if cost <= rule.limit then
      -- Allowed again once so much of the oldest has left.
      local excess = charged - rule.limit
      local freeing = first_from(log, first, function(r) return span(base, r.total) >= excess end)
      retry_after = leaves_after(min(record_at(log, freeing).stamp, now))
    end
    -- A stamp from the future means that the clock stepped back: read it as if it were now.
    local repaired = tail.stamp > now and { first = first, total = tail.total } or nil
    return repaired, answer(0, used, last, retry_after)
  end

  -- Writes the entry: what has left the window goes, and so does what is not older than the entry.
  function sliding_log.write(log, entry, now, ttl_ms)
    local older = log.count + 1
    if record_at(log, log.count).stamp >= now then
      older = first_from(log, entry.first, function(r) return r.stamp >= now end)
    end
    if log.foreign then call("DEL", log.key) end
    if log.count == 0 then
      call("RPUSH", log.key, pack_record(0, 0), pack_record(now, entry.total))
    else
      if entry.first > 1 or older <= log.count then call("LTRIM", log.key, entry.first - 1, older - 1) end
      call("RPUSH", log.key, pack_record(now, entry.total))
    end
    -- A server that permits no expiry gets no key either.
    if type(redis.pcall("PEXPIRE", log.key, ttl_ms)) == "table" then
      if log.count == 0 then call("DEL", log.key) end
      call("PEXPIRE", log.key, ttl_ms)
    end
  end
  -- Gives back what `charge` took, as if it had never been; nothing if too many have come after it.
  function sliding_log.refund(_, log, charge)
    local place = first_from(log, 1, function(r) return r.stamp >= charge.at end)
    -- Out of the window, or stamped anew by a clock that stepped back: nothing is known of it any more.
    if place > log.count or record_at(log, place).stamp ~= charge.at then return log, nil end
    if log.count - place > REFUND_REACH then return log, nil end
    local taken = span(record_at(log, place - 1).total, record_at(log, place).total)
    local given = min(taken, charge.cost)
    for index = place, log.count do
      local record = record_at(log, index)
      call("LSET", log.key, index, pack_record(record.stamp, span(given, record.total)))
    end
    if given == taken then
      -- A list takes out by value only: one that no record has.
      call("LSET", log.key, place, "")
      call("LREM", log.key, -1, "")
    end
    local left = sliding_log.read(log.key)
    return left, left.count > 0 and true or ""
  end
  return sliding_log
end
