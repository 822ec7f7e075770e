--- Reads the part of YAML that the cards of data sets use: maps and lists by indentation, lists in
--- brackets, plain and quoted texts.

local parse_block

local function scalar(text)
  local quote, inner = text:match "^(['\"])(.*)['\"]$"
  if quote then return inner end
  if not text:find "^%[.*%]$" then return text end
  local list = {}
  for item in text:sub(2, -2):gmatch "[^,]+" do
    list[#list + 1] = scalar((item:gsub("^%s+", ""):gsub("%s+$", "")))
  end
  return list
end

local function parse_list(lines, at, indent)
  local list = {}
  while lines[at] and lines[at].indent == indent and lines[at].text:find "^%-" do
    local rest = lines[at].text:match "^%-%s*(.*)$"
    if rest:find "^[%w_]+:%s" or rest:find "^[%w_]+:$" then
      -- A map that begins behind the dash.
      local inner = indent + #lines[at].text - #rest
      lines[at] = { indent = inner, text = rest }
      list[#list + 1], at = parse_block(lines, at, inner)
    elseif rest == "" then
      list[#list + 1], at = parse_block(lines, at + 1, lines[at + 1] and lines[at + 1].indent or 0)
    else
      list[#list + 1], at = scalar(rest), at + 1
    end
  end
  return list, at
end

local function parse_map(lines, at, indent)
  local map = {}
  while lines[at] and lines[at].indent == indent do
    local key, value = lines[at].text:match "^([^:]+):%s*(.*)$"
    if not key then break end
    at = at + 1
    local next_line = lines[at]
    local is_inner = next_line and (next_line.indent > indent
      or next_line.indent == indent and next_line.text:find "^%-")
    if value ~= "" then
      map[key] = scalar(value)
    elseif is_inner then
      map[key], at = parse_block(lines, at, next_line.indent)
    end
  end
  return map, at
end

function parse_block(lines, at, indent)
  if not lines[at] then return nil, at end
  local parse = lines[at].text:find "^%-" and parse_list or parse_map
  local value, after = parse(lines, at, indent)
  if after == at then after = at + 1 end  -- something else: skipped
  return value, after
end

--- Returns the value of a key at the top of the front matter of a Markdown text, nil if it has
--- none.
return function(text, key)
  local front = ("\n" .. text:gsub("\r", "")):match "^%s*%-%-%-\n(.-)\n%-%-%-"
  if not front then return nil end
  local lines, is_inside = {}, false
  for line in (front .. "\n"):gmatch "([^\n]*)\n" do
    local blanks, rest = line:match "^(%s*)(.-)%s*$"
    if blanks == "" and not rest:find "^%-" and rest ~= "" then is_inside = rest == key .. ":"
    elseif is_inside and rest ~= "" and not rest:find "^#" then
      lines[#lines + 1] = { indent = #blanks, text = rest }
    end
  end
  return lines[1] and (parse_block(lines, 1, lines[1].indent))
end
