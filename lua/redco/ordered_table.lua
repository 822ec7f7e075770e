--- Tables that remember the order of their keys.
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"

return registry.define("redco.ordered_table", [[
ordered_table(entries: list = {}) -> table
Returns a table that remembers the order of its keys. `entries` is a list of {key, value}; an entry
without a value is a JSON null. Keys that are set later come last. Tables read from JSON files
remember their order too. The order is kept by `pairs`, chat templates and JSON files, but not by
`redco.tree`.]], function(entries)
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
