--- Tables that remember the order of their keys.
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"

local ordered = {}

ordered.table = registry.define("redco.ordered_table", [[
ordered_table(entries: list = {}) -> table
Returns a table that remembers the order of its keys. `entries` is a list of {key, value}; an entry
without a value is a JSON null. Keys that are set later come last. Tables read from JSON files
remember their order too. The order is kept by `redco.ordered_pairs`, chat templates and JSON files,
but not by `pairs` and `redco.tree`.]], function(entries)
  local result = native.ordered_table()
  for i, entry in ipairs(entries or {}) do
    if type(entry) ~= "table" or type(entry[1]) ~= "string" then
      fail("ordered_table: entry %d: expected {key, value} with a string as the key, got %s", i,
        type(entry) == "table" and "the key " .. tostring(entry[1]) or tostring(entry))
    end
    if rawget(result, entry[1]) ~= nil then
      fail("ordered_table: entry %d: the key '%s' occurs twice", i, entry[1])
    end
    if entry[2] == nil then
      native.ordered_null(result, entry[1])
    else
      result[entry[1]] = entry[2]
    end
  end
  return result
end)

ordered.pairs = registry.define("redco.ordered_pairs", [[
ordered_pairs(object: table) -> function
Iterates over keys and values in the order of a table's keys: `for key, value in
redco.ordered_pairs(object) do`. The keys of a plain table are sorted by their bytes. Keys must be
strings. Entries that are null in JSON are skipped, as by `pairs`.]], function(object)
  if type(object) ~= "table" then
    fail("ordered_pairs: expected a table, got %s", tostring(object))
  end
  local keys, i = native.ordered_keys(object), 0
  return function()
    i = i + 1
    local key = keys[i]
    if key ~= nil then return key, object[key] end
  end
end)

return ordered
