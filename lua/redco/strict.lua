--- Modules in which an unknown name is an error, not nil.
local fail = require "redco.fail"
local lazy = require "redco.lazy"
local names_of = require "redco.names_of"
local native = require "redco.native"

local few = 12

--- Makes the module strict, unless it has a metatable, and returns it. `parts` are names of fields
--- that `load(name)` returns when they are first read.
return function(name, module, parts, load)
  if getmetatable(module) then return module end
  return lazy.fields(module, parts or {}, load, function(key)
    local names = names_of(module, lazy.unread(module))
    local near = native.nearest(tostring(key), names)
    local advice = native.advice_on_field(tostring(key))
    if advice ~= "" then fail("%s has no '%s'%s", name, key, advice) end
    fail("%s has no '%s'%s", name, key, near and ("; did you mean '%s'?"):format(near)
      or #names <= few and "; it has " .. table.concat(names, ", ") or "")
  end)
end
