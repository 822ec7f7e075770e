--- The files of a split of a data set of the Hub, by its card (README.md) or else by their names,
--- as the library `datasets` finds them.
local yaml = require "redco.hub.yaml"

-- The splits by the words in names of files and folders.
local splits = { train = "train", training = "train", validation = "validation",
  valid = "validation", dev = "validation", val = "validation", test = "test", testing = "test",
  eval = "test", evaluation = "test" }

local function has_ending(name, endings)
  for _, ending in ipairs(endings) do
    if name:sub(-#ending) == ending then return true end
  end
  return false
end

-- A pattern of files, such as "data/train-*.parquet", as one of Lua. ** stands for folders too.
local function lua_pattern(glob)
  local text = glob:gsub("^%./", ""):gsub("[%^%$%(%)%%%.%+%-]", "%%%0"):gsub("%?", "[^/]")
  text = text:gsub("%*%*/", "\1"):gsub("%*%*", "\2"):gsub("%*", "[^/]*")
  return "^" .. text:gsub("\1", ".-"):gsub("\2", ".*") .. "$"
end

local function as_list(value) return type(value) == "table" and value or { value } end

local function matching(names, globs, folder)
  local found, seen = {}, {}
  for _, glob in ipairs(as_list(globs)) do
    local pattern = lua_pattern(folder .. tostring(glob):gsub("^%./", ""))
    for _, name in ipairs(names) do
      if name:find(pattern) and not seen[name] then
        seen[name], found[#found + 1] = true, name
      end
    end
  end
  return found
end

-- Returns the split that a word of a name denotes; words of the file name come first.
local function split_of(name)
  local folder, file = name:match "^(.-)([^/]*)$"
  for _, text in ipairs { file, folder } do
    for word in text:lower():gmatch "%a+" do
      if splits[word] then return splits[word] end
    end
  end
end

-- Returns {split = files} by the names alone.
local function by_names(names)
  local found, n = {}, 0
  for _, name in ipairs(names) do
    local split = split_of(name)
    if split then
      found[split], n = found[split] or {}, n + 1
      table.insert(found[split], name)
    end
  end
  return n > 0 and found or { train = names }
end

-- Returns {split = files} of a configuration of the card.
local function by_card(config, names)
  local folder, found = config.data_dir and config.data_dir .. "/" or "", {}
  local given = config.data_files
  if given == nil then
    local own = {}
    for _, name in ipairs(names) do
      if name:sub(1, #folder) == folder then own[#own + 1] = name end
    end
    return by_names(own)
  end
  if type(given) ~= "table" or type(given[1]) == "string" then
    return { train = matching(names, given, folder) }
  end
  if given[1] == nil then  -- { train = "...", test = "..." }
    for split, globs in pairs(given) do found[split] = matching(names, globs, folder) end
    return found
  end
  for _, entry in ipairs(given) do
    found[entry.split or "train"] = matching(names, entry.path, folder)
  end
  return found
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return table.concat(keys, ", ")
end

-- Returns the configuration of this name, or the only or default one; nil and what is missing.
local function choose(configs, name)
  local by_name = {}
  for _, config in ipairs(configs) do by_name[config.config_name or "default"] = config end
  local default = by_name.default or #configs == 1 and configs[1]
  for _, config in ipairs(configs) do
    if config.default == "true" then default = config end
  end
  local chosen = default
  if name then chosen = by_name[name] end
  if chosen then return chosen end
  return nil, ("%s, name is one of %s"):format(name and ("configuration '%s'"):format(name)
    or "default configuration", sorted_keys(by_name))
end

-- Returns the first part of the files that is missing: "x-00002-of-00003.parquet".
local function missing_part(source, names)
  for _, name in ipairs(names) do
    local stem, digits, total, rest = name:match "^(.*%-)(%d+)%-of%-(%d+)(.*)$"
    for i = 0, stem and tonumber(total) - 1 or -1 do
      local other = ("%s%0" .. #digits .. "d-of-%s%s"):format(stem, i, total, rest)
      -- Some names have a digest after the number.
      if not rest:find "^%-" and not source.has(other) then return other end
    end
  end
end

local function of_split(source, path, endings, o)
  local names, folder = {}, path == "" and "" or path .. "/"
  for _, name in ipairs(source.names) do
    if name:sub(1, #folder) == folder and has_ending(name, endings) then
      names[#names + 1] = name
    end
  end
  local configs = path == "" and source.has "README.md" and yaml(source.text "README.md", "configs")
  local found
  if type(configs) == "table" and type(configs[1]) == "table" then
    local config, missing = choose(configs, o.name)
    if not config then return nil, missing end
    found = by_card(config, names)
  elseif o.name then
    return nil, ("card, README.md, with the configuration '%s'"):format(o.name)
  else
    found = by_names(names)
  end
  local split = o.split or "train"
  if not found[split] and #names > 0 then
    return nil, ("split '%s', only %s"):format(split, sorted_keys(found))
  end
  local files = found[split] or {}
  if #files == 0 then
    return nil, ("file of the split %s that ends in %s"):format(split,
      table.concat(endings, " or "))
  end
  return files
end

--- Returns the names of the files of a split, o.split or "train", of the configuration o.name; nil
--- and what is missing if they are not all there. `source` is as for redco.hub.needed; `path` is a
--- folder or a file of the data set.
local function find(source, path, endings, o)
  if path ~= "" and has_ending(path, endings) then
    if not source.has(path) then return nil, path end
    return { path }
  end
  local files, missing = of_split(source, path, endings, o)
  if not files then return nil, missing end
  missing = missing_part(source, files)
  if missing then return nil, missing end
  return files
end

return { find = find, has_ending = has_ending }
