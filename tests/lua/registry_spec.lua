-- Every function a script can reach has a text, but for ATen's operators, whose schema it is.
local redco = require "redco"
local registry = require "redco.registry"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal = testing.test, testing.expect_equal

local is_operator = {}
for _, name in ipairs(torch.operators()) do is_operator[name] = true end

local function is_callable(value)
  local meta = type(value) ~= "string" and getmetatable(value)
  return type(value) == "function" or (type(meta) == "table" and rawget(meta, "__call") ~= nil)
end

local found = {}  -- what can be called, each with the place it was first met

local function note(place, value)
  found[#found + 1] = { place = place, value = value }
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

--- The tables of methods that an object's metatable leads to, itself or as upvalues of a C
--- function, which is where the properties and methods of the classes are.
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
  return {
    Tensor = torch.zeros { 1 }, Deployer = deployer, Trainer = trainer, Optimizer = optimizer,
    Predictor = trainer:get_default_predictor { pred_fn = function() end },
    Tokenizer = redco.Tokenizer.from_pretrained "../cases/gpt2",
    Generator = torch.Generator(1), ScriptModule = torch.jit.load "script_module.pt",
  }
end

local seen = {}
walk("redco", redco, seen)
walk("redco.torch", require "redco.torch", seen)
local n_functions = #found

local n_methods = {}
for name, object in pairs(make_objects()) do
  n_methods[name] = 0
  for _, methods in ipairs(method_tables(object)) do
    for key, value in pairs(methods) do
      if type(value) == "function" then
        n_methods[name] = n_methods[name] + 1
        note(name .. "." .. tostring(key), value)
      end
    end
  end
end

test("functions and methods were found at all", function()
  assert(n_functions > 80, "only " .. n_functions)
  for name, least in pairs { Tensor = 25, Deployer = 6, Trainer = 5, Predictor = 1,
    ScriptModule = 2, Tokenizer = 9 } do
    assert(n_methods[name] >= least, ("%s has %d"):format(name, n_methods[name]))
  end
end)

test("every function has a text whose first line shows the call", function()
  local wrong = {}
  for _, entry in ipairs(found) do
    local last = entry.place:match "[^.]+$"
    local text, full_name = registry.text(entry.value)
    local of_torch = entry.place:find "^redco%.torch%.[^.]+$" or entry.place:find "^Tensor%."
    if type(text) ~= "string" then
      if not (of_torch and is_operator[last]) then
        wrong[#wrong + 1] = entry.place .. " has no text"
      end
    else
      local first = text:match "^[^\n]*"
      local name = full_name:match "[^.:]+$"
      -- `name(arguments)`, `name{arguments}`, or a property's `name: what it is`; with the table
      -- it is in where that reads better.
      if not first:find("^[%w_.]*" .. name .. "%s*[({:]") then
        wrong[#wrong + 1] = ("%s: the text starts with %q"):format(entry.place, first)
      end
    end
  end
  table.sort(wrong)
  assert(#wrong == 0, #wrong .. ":\n" .. table.concat(wrong, "\n"))
end)

test("every text has its name's call in its first line, and a sentence", function()
  local names, wrong = registry.names(), {}
  assert(#names > 100, #names .. " names")
  for _, full_name in ipairs(names) do
    local text = registry.text(full_name)
    local first, rest = text:match "^([^\n]*)\n?(.*)$"
    local name = full_name:match "[^.:]+$"
    if not first:find(name, 1, true) then wrong[#wrong + 1] = full_name .. ": " .. first end
    if not rest:find "%S" then wrong[#wrong + 1] = full_name .. " has a call and nothing more" end
    if text:find "[ \t]\n" or text:find "%s$" then
      wrong[#wrong + 1] = full_name .. " has blanks at the end of a line"
    end
  end
  assert(#wrong == 0, table.concat(wrong, "\n"))
end)

test("text answers to a value and to a full name, and to nothing else", function()
  local text, name = registry.text(redco.nn.linear)
  expect_equal(name, "redco.nn.linear")
  expect_equal(registry.text "redco.nn.linear", text)
  expect_equal((registry.text "redco.nn.nothing"), nil)
  expect_equal((registry.text(print)), nil)
  expect_equal((registry.text {}), nil)
end)

test("names are sorted, and each has a text", function()
  local names = registry.names()
  for i, name in ipairs(names) do
    assert(i == 1 or names[i - 1] < name, name)
    assert(type(registry.text(name)) == "string", name)
  end
end)

test("define keeps a text and gives the value back", function()
  local function f() end
  local before = #registry.names()
  assert(rawequal(registry.define("spec.f", "f()\nDoes nothing.", f), f))
  expect_equal(registry.text "spec.f", "f()\nDoes nothing.")
  expect_equal(select(2, registry.text(f)), "spec.f")
  expect_equal(#registry.names(), before + 1)
end)

test("operators have schemas", function()
  for _, name in ipairs { "add", "matmul", "softmax" } do
    assert(#torch.schemas(name) >= 1, name)
    assert(is_operator[name], name)
  end
end)

testing.finish()
