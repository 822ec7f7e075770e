--- Finds all that a script can call: the functions in the tables of `redco` and `redco.torch`, and
--- the methods of every class, each with the place where it was met.
local redco = require "redco"
local torch = redco.torch

local reachable = { n_methods = {} }

local function is_callable(value)
  local meta = type(value) ~= "string" and getmetatable(value)
  return type(value) == "function" or (type(meta) == "table" and rawget(meta, "__call") ~= nil)
end

local function note(place, value)
  reachable[#reachable + 1] = { place = place, value = value }
end

--- Walks tables from `root`, and notes what can be called.
local function walk(place, root, seen)
  seen[root] = true
  local keys = {}
  for key in pairs(root) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    local value, inner = root[key], place .. "." .. tostring(key)
    if type(value) == "table" and not seen[value] then
      if is_callable(value) then note(inner, value) end
      walk(inner, value, seen)
    elseif type(value) == "function" then
      note(inner, value)
    end
  end
end

--- The tables of methods that an object's metatable leads to, itself or as upvalues of a function,
--- which is where the properties and methods of the classes are.
local function method_tables(object)
  local index, tables = assert(debug.getmetatable(object), "no metatable").__index, {}
  if type(index) == "table" then return { index } end
  if type(index) ~= "function" then return tables end
  for i = 1, 8 do
    local name, value = debug.getupvalue(index, i)
    if not name then break end
    if type(value) == "table" then tables[#tables + 1] = value end
  end
  return tables
end

local function make_objects()
  local deployer = redco.Deployer { seed = 1, verbose = false }
  local optimizer = redco.optim.sgd { learning_rate = 0.1 }
  local trainer = redco.Trainer {
    deployer = deployer, params = { w = torch.zeros { 1 } }, optimizer = optimizer,
    collate_fn = function() return {} end, loss_fn = function() end,
  }
  local tokenizer = redco.Tokenizer.from_pretrained "../cases/gpt2"
  return {
    Tensor = torch.zeros { 1 }, Deployer = deployer, Trainer = trainer, Optimizer = optimizer,
    Predictor = trainer:get_default_predictor { pred_fn = function() end },
    Tokenizer = tokenizer, DecodeStream = tokenizer:decode_stream(),
    Event = torch.cuda.Event(), Generator = torch.Generator(1),
    ScriptModule = torch.jit.load "script_module.pt",
    Dataset = redco.data.dataset(1, function() end),
  }
end

local seen = {}
walk("redco", redco, seen)
walk("redco.torch", torch, seen)
reachable.n_functions = #reachable

for name, object in pairs(make_objects()) do
  reachable.n_methods[name] = 0
  for _, methods in ipairs(method_tables(object)) do
    for key, value in pairs(methods) do
      if type(value) == "function" then
        reachable.n_methods[name] = reachable.n_methods[name] + 1
        note(name .. "." .. tostring(key), value)
      end
    end
  end
end

-- A model's functions are its own.
local model = redco.models.from_pretrained "../cases/t5_relu_tied"
reachable.n_methods.Model = 0
for key, value in pairs(model) do
  if type(value) == "function" then
    reachable.n_methods.Model = reachable.n_methods.Model + 1
    note("Model." .. key, value)
  end
end

return reachable
