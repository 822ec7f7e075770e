--- Fields that are loaded when they are first read. Most scripts use few of the library's modules,
--- and the garbage collector walks all that are loaded.
local lazy = {}

-- By table: the set of its lazy fields that nobody has read.
local unread = {}

--- Returns `t` with a metatable that sets t[name] to load(name) when it is first read, for each of
--- the names. Other unknown names get the value of `otherwise(name)`, nil without.
function lazy.fields(t, names, load, otherwise)
  local waiting = {}
  for _, name in ipairs(names) do waiting[name] = true end
  unread[t] = waiting
  return setmetatable(t, { __index = function(_, name)
    if not waiting[name] then return otherwise and otherwise(name) end
    local value = load(name)
    waiting[name] = nil
    rawset(t, name, value)
    return value
  end })
end

--- Returns the set of the names of `t` that are not loaded.
function lazy.unread(t) return unread[t] end

--- Loads all fields, for a reader of everything there is.
function lazy.load_all()
  repeat  -- a module that is loaded may have such fields, too
    local t, name
    for each, waiting in pairs(unread) do
      name = next(waiting)
      t = each
      if name then break end
    end
    if name then local _ = t[name] end
  until not name
end

return lazy
