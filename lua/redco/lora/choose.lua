--- Chooses layers of a params tree by their names, as peft's `target_modules` do.
local fail = require "redco.fail"
local layers = require "redco.lora.layers"

local function ends_with(name, suffix)
  return name == suffix or name:sub(-#suffix - 1) == "." .. suffix
end

local function is_pattern(modules) return type(modules) == "string" end

local function check(where, modules)
  if is_pattern(modules) then return end
  local wrong = type(modules) ~= "table" and type(modules) or #modules == 0 and "{}"
  for _, module in ipairs(wrong and {} or modules) do
    if type(module) ~= "string" then wrong = "a " .. type(module) .. " in the list" end
  end
  if wrong then
    fail("%s: target_modules: expected the last parts of layers' names, {\"q_proj\"}, or a "
      .. "pattern of whole names, got %s", where, wrong)
  end
end

local function is_target(name, modules)
  if is_pattern(modules) then return name:find("^" .. modules .. "$") ~= nil end
  for _, module in ipairs(modules) do
    if ends_with(name, module) then return true end
  end
  return false
end

-- Lists the last parts of the names of all matrices: the possible target_modules.
local function names_of(all)
  local seen, names = {}, {}
  for _, layer in ipairs(all) do
    local last = layer.name:match "[^.]*$"
    if not seen[last] and #layer:shape() == 2 then names[#names + 1] = last end
    seen[last] = true
  end
  return table.concat(names, ", ")
end

local function check_found(where, chosen, modules, all)
  if is_pattern(modules) then
    if #chosen == 0 then
      fail("%s: no layer's name matches the pattern '%s'; layer names end in %s", where, modules,
        names_of(all))
    end
    return
  end
  for _, module in ipairs(modules) do
    local is_found = false
    for _, layer in ipairs(chosen) do is_found = is_found or ends_with(layer.name, module) end
    if not is_found then
      fail("%s: no layer's name ends in '%s'; layer names end in %s", where, module, names_of(all))
    end
  end
end

--- Returns the layers of a tree that `modules` name, without those whose weight's name is in
--- `except`: a list of last parts of names, or a Lua pattern of whole names. Raises an error, which
--- begins with `where`, if one of them names no layer.
return function(where, params, modules, except)
  check(where, modules)
  local all, chosen = layers.of(params), {}
  for _, layer in ipairs(all) do
    local is_excepted = except and except[layer.name .. ".weight"]
    if is_target(layer.name, modules) and not is_excepted then chosen[#chosen + 1] = layer end
  end
  check_found(where, chosen, modules, all)
  return chosen
end
