-- Penalty: whoever is denied stays denied for a while, and longer each time. Rust twin: src/decide/penalty.rs, line for
-- line.
--
-- value    when it ends, or ended (µs, 7 bytes), which of the steps it is, from 0 (1), big-endian
-- numbers  how many steps there are (1 byte), how long each is (µs, 7)
local weigh, penalties
if penalty_count > 0 then
  local EXACT_MAX = 9007199254740991
  penalties = {}

  -- How long after its end it is forgotten: as long as the last step. Of a single step there is nothing to remember.
  local function quiet(steps)
    return #steps > 1 and steps[#steps] or 0
  end

  -- When the kept one ends, and which step it is. Nothing if there is none.
  local function read(kept)
    if not kept or #kept ~= 8 then return nil, 0 end
    return unpack(">I7B", kept)
  end

  local function keep(ends, step)
    return pack(">I7B", ends, step)
  end

  -- What is left of the one that runs at `now`, if one does.
  local function left_of(steps, ends, step, now)
    if not ends then return nil end
    -- One that is longer than it can be means that the clock stepped back, or that it was made shorter.
    local left = min(ends - now, steps[min(step + 1, #steps)])
    return left > 0 and left or nil
  end

  -- Whether the check is denied, where its kind has decided so of `cost`: what to keep of the penalty and for how long
  -- it means something (µs), whether what the kind charges stands, and the answer.
  function weigh(steps, kept, begins, now, cost, rule, state, allowed, remaining, retry_after, reset_after, delay)
    local ends, step = read(kept)
    local left = left_of(steps, ends, step, now)
    if not left then
      if allowed == 1 or not begins then
        return nil, nil, true, allowed, remaining, retry_after, reset_after, delay
      end
      local next_step = ends and now - ends < quiet(steps) and min(step + 1, #steps - 1) or 0
      local until_when = min(now + steps[next_step + 1], EXACT_MAX)
      left = until_when - now
      if retry_after >= 0 then retry_after = max(retry_after, left) end
      return keep(until_when, next_step), left + quiet(steps), true, 4, 0, retry_after, max(reset_after, left), 0
    end
    if cost == 0 then return nil, nil, true, 3, 0, retry_after, max(reset_after, left), 0 end
    local repaired = ends > now + left and keep(now + left, step) or nil
    if allowed == 0 then
      if retry_after >= 0 then retry_after = max(retry_after, left) end
    else
      local _
      retry_after, _, _, _, _, reset_after = left, rule.decide(rule, state, now, 0)
    end
    return repaired, left + quiet(steps), allowed == 0, 2, 0, retry_after, max(reset_after, left), 0
  end

  for number = 1, penalty_count do
    local count
    count, at = unpack(">B", asked, at)
    local steps = {}
    for step = 1, count do
      steps[step], at = unpack(">I7", asked, at)
    end
    penalties[number] = steps
  end
end
