-- parquet_rows.lua FILE...: prints the rows of Parquet files, forwards and backwards, in the form
-- of parquet_peer.py: strings in hexadecimal, keys in order.
local redco = require "redco"

local function form(value)
  if value == redco.null then return "null" end
  if redco.torch.is_tensor(value) then return form(value:tolist()) end
  if type(value) == "string" then
    return (value:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) .. "s"
  end
  if type(value) == "number" then return ("%.17g"):format(value) end
  if type(value) ~= "table" then return (tostring(value):gsub("LL$", "")) end
  local parts = {}
  if #value > 0 then
    for i, entry in ipairs(value) do parts[i] = form(entry) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  for key, entry in pairs(value) do parts[#parts + 1] = key .. ":" .. form(entry) end
  table.sort(parts)
  return "{" .. table.concat(parts, ",") .. "}"
end

for _, path in ipairs(arg) do
  -- Little memory, so that row groups are dropped and read again.
  local rows = redco.data.parquet(path, { max_memory = 2 ^ 22 })
  for i = 1, #rows do print(form(rows[i])) end
  for i = #rows, 1, -1 do print(form(rows[i])) end
end
