--- Completes and checks the configurations of diffusers' models. The facts of a class:
---   keys: by name {default, kind}; a default of `none` is null. Kinds are the functions below.
---   only: by name the one supported value, `none` for null
local fail = require "redco.fail"
local json = require "redco.models.json"
local names_of = require "redco.names_of"
local native = require "redco.native"

local config = { none = {} }
local none = config.none

local largest = 2 ^ 31 - 1

local function is_whole(value, least)
  return type(value) == "number" and value % 1 == 0 and value >= least and value <= largest
end

local function is_list(value, check)
  if type(value) ~= "table" or #value == 0 then return false end
  for key, entry in pairs(value) do
    if type(key) ~= "number" or not check(entry) then return false end
  end
  return true
end

local function is_size(value) return is_whole(value, 1) end

-- Kinds: {description, function(value) -> whether it is valid}.
local kinds = {
  size = { "a whole number above 0", is_size },
  size_or_list = { "a whole number above 0, or a list of them",
    function(value) return is_size(value) or is_list(value, is_size) end },
  sizes = { "a list of whole numbers above 0",
    function(value) return is_list(value, is_size) end },
  places = { "a list of whole numbers from 0",
    function(value)
      return type(value) == "table" and (next(value) == nil
        or is_list(value, function(entry) return is_whole(entry, 0) end))
    end },
  texts = { "a list of names",
    function(value)
      return is_list(value, function(entry) return type(entry) == "string" end)
    end },
  numbers = { "a list of numbers",
    function(value)
      return is_list(value, function(entry) return type(entry) == "number" end)
    end },
  number = { "a number",
    function(value) return type(value) == "number" and math.abs(value) < math.huge end },
  share = { "a probability, from 0 to 1",
    function(value) return type(value) == "number" and value >= 0 and value <= 1 end },
  boolean = { "true or false", function(value) return type(value) == "boolean" end },
  boolean_or_list = { "true or false, or a list of them",
    function(value)
      local function is_boolean(entry) return type(entry) == "boolean" end
      return is_boolean(value) or is_list(value, is_boolean)
    end },
  text = { "a name", function(value) return type(value) == "string" end },
  padding = { "0 or 1", function(value) return value == 0 or value == 1 end },
}

local function shown(value)
  if value == nil or value == none then return "null" end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for i, entry in ipairs(value) do parts[i] = tostring(entry) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function check_unknown(facts, key, value, where)
  if key:sub(1, 1) == "_" then return end
  -- A switch of a later version changes no result if it is off.
  if value == false then return end
  local near = native.nearest(key, names_of(facts.keys, facts.only))
  fail("%s: unknown key '%s' of %s%s", where, key, facts.class_name,
    near and ("; did you mean '%s'?"):format(near) or "")
end

--- Returns a complete copy of the configuration `given`; `where` is its file, for errors.
function config.complete(facts, given, where)
  local c, is_null = json.copy(given), json.nulls(given)
  for key, value in pairs(given) do
    if not facts.keys[key] and facts.only[key] == nil then
      check_unknown(facts, tostring(key), value, where)
    end
  end
  for key, value in pairs(facts.only) do
    if c[key] ~= nil and c[key] ~= value then
      fail("%s: %s = %s is not supported, only %s", where, key, shown(c[key]), shown(value))
    end
    if value == none then json.set_null(c, key) else c[key] = value end
  end
  for key, row in pairs(facts.keys) do
    local default, kind = row[1], kinds[row[2]]
    if c[key] == nil and (is_null[key] or default == none) then
      if default ~= none then
        fail("%s: %s is null, expected %s", where, key, kind[1])
      end
      json.set_null(c, key)
    elseif c[key] == nil then
      c[key] = default
    elseif not kind[2](c[key]) then
      fail("%s: %s is %s, expected %s", where, key, shown(c[key]), kind[1])
    end
  end
  json.mark_reals(c, facts.keys)
  c._class_name = facts.class_name
  return c
end

--- Returns a list with one entry for each block: `value` itself, or a list of it.
function config.each(c, key, n, where)
  local value, list = c[key], {}
  if type(value) == "table" then
    if #value ~= n then
      fail("%s: %s has %d entries, expected one for each of the %d blocks", where, key, #value, n)
    end
    return value
  end
  for i = 1, n do list[i] = value end
  return list
end

--- Raises an error unless all sizes are multiples of `divisor`, the value of `name`.
function config.check_multiples(where, key, sizes, name, divisor)
  for _, size in ipairs(sizes) do
    if size % divisor ~= 0 then
      fail("%s: %s has %d, which is not a multiple of %s (%d)", where, key, size, name, divisor)
    end
  end
end

return config
