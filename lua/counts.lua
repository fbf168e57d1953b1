-- How both windows write what they have counted: in the fewest bytes, at most 6.
local width_of
if fixed_windows + sliding_counters > 0 then
  function width_of(count)
    if count < 256 then return 1 end
    if count < 65536 then return 2 end
    if count < 16777216 then return 3 end
    if count < 4294967296 then return 4 end
    return count < 1099511627776 and 5 or 6
  end
end
