--- Splits one record of a CSV file (RFC 4180) into its values.
local quote = ('"'):byte()

-- Returns the quoted value that begins at `first`, and the position after it.
local function quoted(text, first, refuse)
  local last = first
  while true do
    last = text:find('"', last + 1, true) or refuse "a quote is not closed"
    if text:byte(last + 1) ~= quote then break end
    last = last + 1  -- a doubled quote stands for one quote
  end
  return (text:sub(first + 1, last - 1):gsub('""', '"')), last + 1
end

--- Returns a list of strings. `refuse(message, ...)` raises an error.
local function csv_fields(text, delimiter, refuse)
  local values, first = {}, 1
  repeat
    local value, last
    if text:byte(first) == quote then
      value, last = quoted(text, first, refuse)
      if last <= #text and text:sub(last, last) ~= delimiter then
        refuse("after a closing quote there is '%s', expected '%s'", text:sub(last, last),
          delimiter)
      end
    else
      last = text:find(delimiter, first, true) or #text + 1
      value = text:sub(first, last - 1)
    end
    values[#values + 1] = value
    first = last + 1
  until last > #text
  return values
end

return csv_fields
