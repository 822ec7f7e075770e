--- Cuts a text that comes in pieces before the first of some strings.

-- Returns the length of the longest end of the text that a stop string begins with.
local function length_of_begun(text, stops)
  local longest = 0
  for _, stop in ipairs(stops) do
    for n = math.min(#text, #stop - 1), longest + 1, -1 do
      if text:sub(-n) == stop:sub(1, n) then
        longest = n
        break
      end
    end
  end
  return longest
end

--- Returns `push(piece)` and `finish()`. Both return the text that can be shown. The end of a text
--- that may turn out to be a stop string is held back. `push` also returns whether one came.
return function(stops)
  local held, is_stopped = "", false
  local function push(piece)
    if is_stopped then return "", true end
    local text, first = held .. piece, nil
    for _, stop in ipairs(stops) do
      local at = text:find(stop, 1, true)
      if at and (not first or at < first) then first = at end
    end
    is_stopped = first ~= nil
    local n = first and first - 1 or #text - length_of_begun(text, stops)
    held = first and "" or text:sub(n + 1)
    return text:sub(1, n), is_stopped
  end
  return push, function()
    local rest = held
    held = ""
    return rest
  end
end
