-- Sliding log: remembers each request, and is exact. Rust twin: src/decide/sliding_log.rs.
--
-- value    a list of records: stamp (µs, 7 bytes), total (units charged up to and with this one, since ever and modulo
--          USED_MAX + 1; 6 bytes), big-endian. Record 0 is the newest that has left the window; the requests are 1, 2, …
-- numbers  limit (units), window (µs): 7 bytes each
if sliding_logs > 0 then
  -- The most records that a refund rewrites.
  local REFUND_REACH = 1000

  -- Units charged from one running total to a later one. Totals run round at USED_MAX.
  local function span(from, to)
    return (to - from) % (USED_MAX + 1)
  end

  local function pack_record(stamp, total)
    return pack(">I7I6", stamp, total % (USED_MAX + 1))
  end

  -- One that we did not write counts as one that has left the window long ago.
  local function unpack_record(value)
    if #value ~= 13 then return 0, 0 end
    return unpack(">I7I6", value)
  end

  -- Writes the entry; what does not stay for it goes.
  local function write(log, ttl_ms)
    -- One whose records are rewritten already has no entry.
    if not log.entry then return call("PEXPIRE", log.key, ttl_ms) end
    if log.foreign then call("DEL", log.key) end
    if log.is_new then
      call("RPUSH", log.key, pack_record(0, 0), log.entry)
    else
      if log.base > 0 or log.cut then call("LTRIM", log.key, log.base, log.cut or -1) end
      call("RPUSH", log.key, log.entry)
    end
    -- A server that permits no expiry gets no key either.
    if type(redis.pcall("PEXPIRE", log.key, ttl_ms)) == "table" then
      if log.is_new then call("DEL", log.key) end
      call("PEXPIRE", log.key, ttl_ms)
    end
  end

  -- The log at `key`. Its ends are read at once, and what is between them where it is looked at.
  local function open(key)
    local values = redis.pcall("LRANGE", key, 0, 2)
    if values.err and not string.find(values.err, "WRONGTYPE", 1, true) then return call("LRANGE", key, 0, 2) end
    local length = values.err and 0 or #values
    local log = {
      key = key,
      -- The records that were read, 0 first, and the newest of all.
      values = values,
      tail = values[2],
      -- The newest record that has left the window.
      base = 0,
      -- What is to stand at the end, and the last record that stays for it.
      entry = nil,
      cut = nil,
      -- What we did not write is as if nothing were there.
      is_new = length < 2,
      foreign = values.err or length == 1,
      write = write,
    }
    if log.is_new then
      log.values, log.tail = { "", false }, ""
    elseif length == 2 then
      values[3] = false
    else
      log.tail = call("LINDEX", key, -1)
    end
    return log
  end

  -- When record `index` was made and its total; nothing if there is none.
  local function record_at(log, index)
    if log.cut and index > log.cut then return nil end
    local value = log.values[index + 1]
    if value == nil then
      value = call("LINDEX", log.key, index)
      log.values[index + 1] = value
    end
    if value then return unpack_record(value) end
  end

  -- Whether record `index` is stamped `least` or later or, if there is a total to count `from`, whether so many units
  -- were charged up to it. There is none after all that may be asked for, and what comes then is all of that.
  local function reaches(log, index, least, from)
    local stamp, total = record_at(log, index)
    if not stamp then return true end
    if from then return span(from, total) >= least end
    return stamp >= least
  end

  -- The first record from `first` on that reaches so much, as all after it do. Gallops, from where it mostly is, then
  -- halves.
  local function first_from(log, first, guess, least, from)
    local low, high, step = first, guess, 1
    while not reaches(log, high, least, from) do
      low, high, step = high + 1, high + step, step * 2
    end
    local probe = high - 1
    while low < high do
      if reaches(log, probe, least, from) then high = probe else low = probe + 1 end
      probe = math.floor((low + high) / 2)
    end
    return low
  end

  -- The first record that is inside the window that ends now.
  local function first_inside(rule, log, now)
    local first = log.base + 1
    return first_from(log, first, first, now - rule.window_us + 1)
  end

  -- How long until what was stamped then is out of the window.
  local function leaves_after(rule, stamp, now)
    local left = rule.window_us - (now - stamp)
    return left > 0 and left or 0
  end

  local function answer(rule, used, last, now, allowed, retry_after)
    local remaining = used < rule.limit and rule.limit - used or 0
    return allowed, remaining, retry_after, used > 0 and leaves_after(rule, last, now) or 0, 0
  end

  -- The new total if there is to be an entry.
  local function decide(rule, log, now, cost)
    local first = first_inside(rule, log, now)
    local stamp, total = unpack_record(log.entry or log.tail)
    local _, base = record_at(log, first - 1)
    local used = span(base, total)
    local last = min(stamp, now)
    if cost == 0 then return nil, answer(rule, used, last, now, 1, 0) end
    local charged = used + cost

    if charged <= rule.limit then
      return total + cost, answer(rule, charged, now, now, 1, 0)
    end
    local retry_after = -1
    if cost <= rule.limit then
      -- Allowed again once so much of the oldest has left. Most requests take as much as the first.
      local excess = charged - rule.limit
      local _, oldest = record_at(log, first)
      local guess = oldest and div_ceil(excess, max(span(base, oldest), 1)) or 1
      local freeing = first_from(log, first, first + guess - 1, excess, base)
      retry_after = leaves_after(rule, min(record_at(log, freeing) or now, now), now)
    end
    -- A stamp from the future means that the clock stepped back: read it as if it were now.
    local repaired = stamp > now and total or nil
    return repaired, answer(rule, used, last, now, 0, retry_after)
  end

  -- Puts an entry at the end: what has left the window goes, and so does what is not older than the entry.
  local function keep(rule, log, total, now)
    log.base = first_inside(rule, log, now) - 1
    if not log.entry and unpack_record(log.tail) >= now then
      log.cut = first_from(log, log.base + 1, log.base + 1, now) - 1
    end
    log.entry = pack_record(now, total)
    return log
  end

  local refund, charge_late
  if settles then
    -- Gives back what `charged` took, as if it had never been; nothing if too many have come after it: their records
    -- are rewritten.
    function refund(_, log, charged)
      local place = first_from(log, 1, 1, charged.at)
      local stamp, total = record_at(log, place)
      -- Out of the window, or stamped anew by a clock that stepped back: nothing is known of it any more.
      if stamp ~= charged.at then return nil end
      local count = call("LLEN", log.key) - 1
      if count - place > REFUND_REACH then return nil end
      local _, before = record_at(log, place - 1)
      local taken = span(before, total)
      local given = min(taken, charged.cost)
      for index = place, count do
        stamp, total = record_at(log, index)
        call("LSET", log.key, index, pack_record(stamp, span(given, total)))
      end
      if given < taken then return open(log.key) end
      -- A list takes out by value only: one that no record has.
      call("LSET", log.key, place, "")
      call("LREM", log.key, -1, "")
      return count > 1 and open(log.key) or ""
    end

    -- Charges `cost` whatever the limit, as far as it can be told from what left long ago.
    function charge_late(rule, log, cost, now)
      local _, base = record_at(log, first_inside(rule, log, now) - 1)
      local _, total = unpack_record(log.tail)
      return keep(rule, log, total + min(cost, USED_MAX - span(base, total)), now)
    end
  end

  for _ = 1, sliding_logs do
    local limit, window_us
    limit, window_us, at = unpack(">I7I7", asked, at)
    rules[#rules + 1] = {
      decide = decide,
      refund = refund,
      charge_late = charge_late,
      limit = limit,
      window_us = window_us,
      open = open,
      keep = keep,
    }
  end
end
