--- Chooses layers of a params tree by their names, as peft's `target_modules` and
--- `target_parameters` do.
local fail = require "redco.fail"
local layers = require "redco.lora.layers"
local native = require "redco.native"

local choose = {}

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
function choose.modules(where, params, modules, except)
  check(where, modules)
  local all, chosen = layers.of(params), {}
  for _, layer in ipairs(all) do
    local is_excepted = except and except[layer.name .. ".weight"]
    if is_target(layer.name, modules) and not is_excepted then chosen[#chosen + 1] = layer end
  end
  check_found(where, chosen, modules, all)
  return chosen
end

-- Lists the last two parts of the names of all stacks, or says how else experts are chosen.
local function stacks_of(all)
  local seen, names, has_layers = {}, {}, false
  for _, layer in ipairs(all) do
    local ending = layer.parameter:match "[^.]*%.[^.]*$"
    if layer:is_stack() and not seen[ending] then names[#names + 1], seen[ending] = ending, true end
    has_layers = has_layers or layer.name:find "%.experts%.%d+%." ~= nil
  end
  if names[1] then return "; those of experts end in " .. table.concat(names, ", ") end
  return has_layers and "; these experts are layers, which target_modules choose" or ""
end

--- Returns the layers of a tree whose weights' names end in one of `endings`, without those in
--- `except`: matrices, and parameters with the matrices of all experts. Raises an error, which
--- begins with `where`, if an ending names none.
function choose.parameters(where, params, endings, except)
  local wrong = type(endings) ~= "table" and type(endings) or #endings == 0 and "{}"
  if wrong then
    fail("%s: target_parameters: expected the last parts of parameters' names, "
      .. "{\"experts.down_proj\"}, got %s", where, wrong)
  end
  local all, chosen, is_chosen = layers.with_stacks(params), {}, {}
  for _, ending in ipairs(endings) do
    local is_found = false
    for _, layer in ipairs(all) do
      if type(ending) == "string" and ends_with(layer.parameter, ending) then
        is_found = true
        local is_new = not is_chosen[layer] and not (except and except[layer.parameter])
        if is_new then chosen[#chosen + 1], is_chosen[layer] = layer, true end
      end
    end
    if not is_found then
      fail("%s: no parameter's name ends in '%s'%s", where, tostring(ending), stacks_of(all))
    end
  end
  return chosen
end

-- Returns the last parts of names, which `ending` matches, if all layers with that ending have an
-- adapter of this kind, else whole names. layer[key] is a name; `is_stack` is the kind.
local function targets(all, ending, key, is_stack)
  local is_whole, names, seen = {}, {}, {}
  local function has_adapter(layer) return layer:is_stack() == is_stack and layer:has_adapter() end
  for _, layer in ipairs(all) do
    local is_module = layer:is_stack() == is_stack or layer.parameter:find "%.weight$"
    local last = is_module and layer[key]:match(ending)
    if last then is_whole[last] = is_whole[last] ~= false and has_adapter(layer) end
  end
  for _, layer in ipairs(all) do
    local whole = layer[key]
    local last = whole:match(ending)
    local name = is_whole[last] and last or whole
    if has_adapter(layer) and not seen[name] then names[#names + 1], seen[name] = name, true end
  end
  return names
end

local empty_list = native.json_decode("", "[]")

--- Returns target_modules and target_parameters that choose the layers of the list with adapters.
function choose.targets_of(all)
  local modules = targets(all, "[^.]*$", "name", false)
  local parameters = targets(all, "[^.]*%.[^.]*$", "parameter", true)
  return modules[1] and modules or empty_list, parameters[1] and parameters or nil
end

return choose
