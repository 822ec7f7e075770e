--- The globals of a restricted engine. The tables below list everything that its scripts can reach.
local fail = require "redco.fail"
local names_of = require "redco.names_of"
local torch = require "redco.torch"

-- Functions of Lua. Left out are functions that read files or load code (require and print are
-- replaced), that could escape the read-only tables (getfenv, setfenv, newproxy), and
-- collectgarbage, because one call may run for an unlimited time.
local libraries = {
  _G = "assert error ipairs next pairs pcall rawequal rawget rawset select tonumber tostring type "
    .. "unpack xpcall _VERSION",
  bit = "arshift band bnot bor bswap bxor lshift rol ror rshift tobit tohex",
  coroutine = "create isyieldable resume running status wrap yield",
  math = "abs acos asin atan atan2 ceil cos cosh deg exp floor fmod frexp huge ldexp log log10 max "
    .. "min modf pi pow rad random randomseed sin sinh sqrt tan tanh",
  os = "clock date difftime time",
  string = "byte char find format gmatch gsub len lower match rep reverse sub upper",
  table = "concat insert maxn remove sort",
}

-- Functions of this library, by module name; "*" means all. Left out is everything that reads or
-- writes files, opens connections or starts threads: Deployer, Trainer and Predictor, Tokenizer,
-- checkpoints, redco.data, models, lora, plot, options, the prompt.
local modules = {
  ["redco"] = "Rng checkpoint grad metrics nn optim torch tree value_and_grad vmap with_rng",
  ["redco.metrics"] = "*",
  ["redco.nn"] = "*",
  ["redco.optim"] = "*",
  ["redco.torch"] = "*",
  ["redco.tree"] = "*",
}

-- Functions of these modules that are left out: they use files, memory addresses, the process or
-- its GPUs.
local absent = {
  [torch] = "backends from_file jit load save set_float32_matmul_precision set_num_threads "
    .. "use_deterministic_algorithms",
  [torch.cuda] = "current_device Event empty_cache get_device_name mem_get_info "
    .. "reset_peak_memory_stats set_device synchronize",
  [torch.Tensor] = "address data_ptr from_file",
}

local function set_of(names)
  local set = {}
  for name in names:gmatch "%S+" do set[name] = true end
  return set
end

local function is_internal(name) return type(name) == "string" and name:sub(1, 1) == "_" end

local views = setmetatable({}, { __mode = "k" })

-- Returns a read-only view of a table of this library. It is not a table, so no function of Lua can
-- write to it.
local function read_only(source, name, shown)
  if views[source] then return views[source] end
  local hidden = set_of(absent[source] or "")
  local view = newproxy(true)
  views[source] = view
  local meta = getmetatable(view)
  meta.__metatable = false
  function meta.__index(_, key)
    if hidden[key] or is_internal(key) or shown and not shown[key] then
      fail("%s.%s is not available in a restricted engine", name, key)
    end
    local value = source[key]
    return type(value) == "table" and read_only(value, name .. "." .. key) or value
  end
  function meta.__newindex() fail("%s is read-only in a restricted engine", name) end
  function meta.__tostring() return name end
  return view
end

local function require_module(name)
  local shown = modules[name]
  if not shown then
    fail("require: a restricted engine has no module '%s', only %s", name,
      table.concat(names_of(modules), ", "))
  end
  return read_only(require(name), name, shown ~= "*" and set_of(shown) or nil)
end

-- Metatables that scripts created; all others belong to this library.
local made = setmetatable({}, { __mode = "k" })

local function script_setmetatable(value, meta)
  local old = debug.getmetatable(value)
  if old and not made[old] then fail("setmetatable: this metatable is protected") end
  setmetatable(value, meta)
  if meta then made[meta] = true end
  return value
end

local function script_getmetatable(value)
  return made[debug.getmetatable(value)] and getmetatable(value) or nil
end

-- If the stack is full, LuaJIT raises an error instead of calling the hook that counts
-- instructions. A script that catches this error could run forever, so each call of pcall and
-- xpcall is counted too, outside of the protected function.
local function counted(catch, count)
  return function(...)
    count()
    return catch(...)
  end
end

--- Returns the globals of a restricted engine. `show` receives the lines that scripts print.
--- `count` subtracts from the remaining instructions, or ends the script. `counted_call` wraps a
--- function so that it counts as a C++ function, whose nesting is limited.
return function(show, count, counted_call)
  -- String methods bypass the tables above. LuaJIT does not limit the nesting of the calls below,
  -- but the stack of a thread is limited.
  string.dump = nil
  string.gsub = counted_call(string.gsub)
  local limited = {
    resume = counted_call(coroutine.resume),
    wrap = function(f) return counted_call(coroutine.wrap(f)) end,
  }
  for name in pairs(set_of(absent[torch.Tensor])) do
    torch.Tensor[name] = function()
      fail("Tensor:%s is not available in a restricted engine", name)
    end
  end

  local globals = {}
  for name, names in pairs(libraries) do
    local source, library = _G[name], {}
    for each in pairs(set_of(names)) do library[each] = limited[each] or source[each] end
    if name == "_G" then
      for each, value in pairs(library) do globals[each] = value end
    else
      globals[name] = read_only(library, name)
    end
  end
  globals._G = globals
  globals.require = require_module
  globals.pcall = counted(pcall, count)
  globals.xpcall = counted(xpcall, count)
  globals.setmetatable = script_setmetatable
  globals.getmetatable = script_getmetatable
  function globals.print(...)
    local words = { ... }
    for i = 1, select("#", ...) do words[i] = tostring(words[i]) end
    show(table.concat(words, "\t"))
  end
  return globals
end
