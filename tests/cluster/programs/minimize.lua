--- Makes a failing program small: drops and simplifies lines while it fails alike.
local minimize = {}

--- Simpler forms of a line, the most drastic first.
local function simpler(line)
  local forms = {}
  local function add(form) if form and form ~= line then forms[#forms + 1] = form end end
  local left, right = line:match "^(x%d+) = (.+)$"
  if left then
    for name in right:gmatch "x%d+" do add(left .. " = " .. name) end
  end
  add((line:gsub("terms(%b())", "shard%1"):gsub('"sum"', '"partial"')))
  add((line:gsub("dp = %b{}", ""):gsub('dp = "?%w+"?,? ?', "")))
  add((line:gsub(",? ?mp = %b{}", ""):gsub(',? ?mp = "?%w+"?', "")))
  add((line:gsub("shard(%b())", function(inner)
    return inner:match "^%((x%d+), %b{}%)$" or inner:match "^%((%w+%b()), %b{}%)$"
  end)))
  add((line:gsub(", { keepdim = true }", "")))
  return forms
end

--- The lines that what the last one reads comes from.
function minimize.slice(lines)
  local needed, kept = {}, {}
  for i = #lines, 1, -1 do
    local is_needed = i == #lines
    local left = lines[i]:match "^([%w_, ]+) = "
    for name in (left or lines[i]):gmatch "%f[%w]%l+%d*%f[%W]" do is_needed = is_needed
      or needed[name] end
    if is_needed then
      table.insert(kept, 1, lines[i])
      for name in lines[i]:gmatch "%f[%w]%l+%d*%f[%W]" do needed[name] = name:find "%d"
        or name == "loss" or name == "second" end
    end
  end
  return kept
end

--- The smallest list of lines that is found for which fails(lines).
function minimize.lines(lines, fails)
  local n_tries = 0
  local function try(candidate)
    n_tries = n_tries + 1
    return n_tries < 400 and fails(candidate)
  end
  local size = math.max(1, math.floor(#lines / 2))
  while size >= 1 do
    local at, dropped = #lines - size + 1, false
    while at >= 1 - size + 1 do
      local from = math.max(1, at)
      local candidate = {}
      for i, line in ipairs(lines) do
        if i < from or i > at + size - 1 then candidate[#candidate + 1] = line end
      end
      if #candidate < #lines and try(candidate) then lines, dropped = candidate, true end
      at = at - size
    end
    if size == 1 and not dropped then break end
    if size > 1 or not dropped then size = math.floor(size / 2) end
  end
  local changed = true
  while changed do
    changed = false
    for i, line in ipairs(lines) do
      for _, form in ipairs(simpler(line)) do
        local candidate = { unpack(lines) }
        candidate[i] = form
        if loadstring(form) and try(candidate) then
          lines, changed = candidate, true
          break
        end
      end
    end
    for i = #lines, 1, -1 do
      local candidate = { unpack(lines) }
      table.remove(candidate, i)
      if #candidate > 0 and try(candidate) then lines, changed = candidate, true end
    end
  end
  return lines
end

return minimize
