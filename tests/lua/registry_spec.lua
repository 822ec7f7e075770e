-- Every function a script can reach has a text, but for ATen's operators, whose schema it is.
local redco = require "redco"
local reachable = require "reachable"
local registry = require "redco.registry"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal = testing.test, testing.expect_equal

local is_operator = {}
for _, name in ipairs(torch.operators()) do is_operator[name] = true end

test("functions and methods were found at all", function()
  assert(reachable.n_functions > 80, "only " .. reachable.n_functions)
  for name, least in pairs { Tensor = 25, Deployer = 6, Trainer = 5, Predictor = 1,
    ScriptModule = 2, Tokenizer = 9, Dataset = 5, DecodeStream = 2, Model = 7 } do
    local n = reachable.n_methods[name]
    assert(n >= least, ("%s has %d"):format(name, n))
  end
end)

test("every function has a text whose first line shows the call", function()
  local wrong = {}
  for _, entry in ipairs(reachable) do
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
      -- `name(arguments)`, `name{arguments}`, a property's `name: what it is`, or a module that can
      -- be called.
      if not first:find("^" .. name .. "[({:]") and first ~= full_name then
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

test("a text may come before its value", function()
  registry.define("spec.late", "late()\nDoes nothing.")
  local function late() end
  registry.define("spec.late", "late()\nDoes nothing.", late)
  expect_equal(select(2, registry.text(late)), "spec.late")
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
