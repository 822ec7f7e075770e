--- Counts mistakes, and remembers in which examples the first ones are.
local most_shown = 5

--- Returns a tally: add(example) counts one; result(of) returns what a check's `find` returns.
return function()
  local count, places, is_known = 0, {}, {}
  local tally = {}

  function tally.add(example)
    count = count + 1
    if example and not is_known[example] then
      is_known[example] = true
      places[#places + 1] = example
    end
  end

  function tally.result(of)
    if count == 0 then return nil end
    table.sort(places)
    local shown = table.concat(places, ", ", 1, math.min(#places, most_shown))
    if shown == "" then return count, of end
    local more = #places > most_shown and ", ..." or ""
    return count, of, (#places > 1 and "examples " or "example ") .. shown .. more
  end

  return tally
end
