-- Concurrency: so many units in flight at once. Rust twin: src/decide/concurrency.rs, where one alone holds them.
--
-- value    a hash of holders: units in flight (6 bytes), when that was last said (µs, 7), and how long it counts from
--          then on (µs, 7), big-endian
-- numbers  limit (units), lease (µs): 7 bytes each; who holds what is taken: a gateway (8 bytes), and which of its fields
--          it is (4)
if concurrencies > 0 then
  -- What a denial tells to wait: when a unit comes free nobody can say.
  local RETRY_US = 1000000

  -- Writes what has changed; the key lasts as long as what is held the longest. A hash without fields is gone.
  local function write(slots)
    local key = slots.key
    if slots.foreign then call("DEL", key) end
    for holder in pairs(slots.changed) do
      local held = slots.held[holder]
      if held then
        call("HSET", key, holder, pack(">I6I7I7", held.units, held.stamp, held.lease_us))
      else
        call("HDEL", key, holder)
      end
    end
    local ttl_ms = 0
    for _, held in pairs(slots.held) do
      ttl_ms = max(ttl_ms, div_ceil(held.stamp + held.lease_us - now, 1000) + slack_ms)
    end
    -- A server that permits no expiry gets no key either.
    if ttl_ms > 0 and type(redis.pcall("PEXPIRE", key, ttl_ms)) == "table" then
      if slots.is_new then call("DEL", key) end
      call("PEXPIRE", key, ttl_ms)
    end
  end

  -- What is held at `key`. Of a gateway that was not heard of for its lease that is nothing.
  local function open(key)
    local fields = redis.pcall("HGETALL", key)
    if fields.err and not string.find(fields.err, "WRONGTYPE", 1, true) then return call("HGETALL", key) end
    local slots = {
      key = key,
      -- By holder: units, stamp, lease_us.
      held = {},
      -- All of that.
      used = 0,
      -- Whose fields are to be written, or taken out.
      changed = {},
      -- Whether a stamp was moved, which is to be written even by a denial.
      moved = false,
      is_new = #fields == 0,
      foreign = fields.err,
      write = write,
    }
    for i = 1, #fields, 2 do
      local holder, value, held = fields[i], fields[i + 1], nil
      if #holder == 12 and #value == 20 then
        local units, stamp, lease_us = unpack(">I6I7I7", value)
        -- A stamp from the future means that the clock stepped back: read it as if it were now.
        if stamp > now then
          stamp, slots.moved, slots.changed[holder] = now, true, true
        end
        if units > 0 and now - stamp < lease_us then held = { units = units, stamp = stamp, lease_us = lease_us } end
      end
      if held then
        slots.held[holder], slots.used = held, slots.used + held.units
      else
        slots.changed[holder] = true
      end
    end
    return slots
  end

  local function answer(rule, used, allowed, retry_after)
    local remaining = used < rule.limit and rule.limit - used or 0
    return allowed, remaining, retry_after, used > 0 and rule.lease_us or 0, 0
  end

  -- How many units more this holder is to hold.
  local function decide(rule, slots, _, cost)
    local used = slots.used
    if cost == 0 then return nil, answer(rule, used, 1, 0) end
    local charged = used + cost

    if charged <= rule.limit then return cost, answer(rule, charged, 1, 0) end
    return slots.moved and 0 or nil, answer(rule, used, 0, cost <= rule.limit and RETRY_US or -1)
  end

  -- Sets what this holder holds, from now on.
  local function set(rule, slots, units)
    local held = slots.held[rule.holder]
    slots.used = slots.used - (held and held.units or 0) + units
    slots.held[rule.holder] = units > 0 and { units = units, stamp = now, lease_us = rule.lease_us } or nil
    slots.changed[rule.holder] = true
  end

  local function keep(rule, slots, more)
    local held = slots.held[rule.holder]
    if more > 0 then set(rule, slots, min((held and held.units or 0) + more, USED_MAX)) end
    return slots
  end

  -- Holds so many units more, or less if that is below 0, for another lease. What stands in earlier fields of the same
  -- gateway is of calls that nobody knows the outcome of, and goes. Returns how many units are held then.
  local function hold(rule, slots, more)
    local gateway, field = unpack(">c8I4", rule.holder)
    for holder, held in pairs(slots.held) do
      local of, earlier = unpack(">c8I4", holder)
      if of == gateway and earlier < field then
        slots.held[holder], slots.used, slots.changed[holder] = nil, slots.used - held.units, true
      end
    end
    local held = slots.held[rule.holder]
    local units = min(max((held and held.units or 0) + more, 0), USED_MAX)
    set(rule, slots, units)
    return units
  end

  for _ = 1, concurrencies do
    local limit, lease_us, holder
    limit, lease_us, holder, at = unpack(">I7I7c12", asked, at)
    rules[#rules + 1] = {
      decide = decide,
      hold = hold,
      limit = limit,
      lease_us = lease_us,
      holder = holder,
      open = open,
      keep = keep,
    }
  end
end
