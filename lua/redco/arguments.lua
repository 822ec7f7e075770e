--- Reads the trailing table of named arguments of a function written in Lua.
local fail = require "redco.fail"
local names_of = require "redco.names_of"
local native = require "redco.native"

local function is_known(known, key)
  return known.defaults[key] ~= nil or known.optional[key]
end

local function refuse(where, known, key)
  local names = names_of(known.defaults, known.optional)
  local near = native.nearest(tostring(key), names)
  fail("%s: unknown argument '%s'; %s", where, key, near
    and ("did you mean '%s'?"):format(near) or "expected one of " .. table.concat(names, ", "))
end

--- Returns a reader of one function's named arguments. Given the table of a call, or nil, the
--- reader returns all arguments. `defaults` has those with a default, `optional` lists those
--- without. An unknown name raises an error, located at the caller.
local function arguments(where, defaults, optional)
  local known = { defaults = defaults, optional = {} }
  for _, name in ipairs(optional or {}) do known.optional[name] = true end
  return function(given)
    if given == nil then return defaults end
    if type(given) ~= "table" then
      fail("%s: expected a table of named arguments (%s), got %s", where,
        table.concat(names_of(known.defaults, known.optional), ", "), type(given))
    end
    local all = {}
    for key, value in pairs(defaults) do all[key] = value end
    for key, value in pairs(given) do
      if not is_known(known, key) then refuse(where, known, key) end
      all[key] = value
    end
    return all
  end
end

return arguments
