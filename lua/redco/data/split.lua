--- Divides examples into those to train on and those to evaluate on.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"

local options = arguments("split", {}, { "every" })

return registry.define("redco.data.split", [[
split(set, {every}) -> list or Dataset, list or Dataset
Divides examples in two: every `every`-th one is held out, starting with number `every`, and all
others are for training. Returns the training examples and the held-out ones, in their order. A list
gives two lists. A data set gives two data sets, which read an example when it is accessed.]],
function(set, given)
  local every = options(given).every
  check_integer("split", "every", every, 2)
  local is_list = type(set) == "table"
  if not is_list and type(set) ~= "userdata" then
    fail("split: expected a list or a data set, got %s", native.describe(set))
  end
  local n_held_out = math.floor(#set / every)
  local train = dataset.view(set, #set - n_held_out, function(i)
    return i + math.floor((i - 1) / (every - 1))
  end)
  local held_out = dataset.view(set, n_held_out, function(i) return i * every end)
  if is_list then return train:tolist(), held_out:tolist() end
  return train, held_out
end)
