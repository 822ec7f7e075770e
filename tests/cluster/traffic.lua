-- What a piece of a program sends, by kind of collective.
local redco = require "redco"
local testing = require "testing"

local traffic = { kinds = { "all_reduce", "all_gather", "reduce_scatter", "all_to_all" } }

--- What `body` sends on a group, by kind; an error where an operator had to gather its arguments.
function traffic.sent(group, body)
  local before = redco.sharding_counters()
  body()
  local after, found = redco.sharding_counters(), {}
  for _, kind in ipairs(traffic.kinds) do
    local a, b = before.collectives[group][kind], after.collectives[group][kind]
    found[kind] = { count = b.count - a.count, bytes = b.bytes - a.bytes }
  end
  for name, gather in pairs(after.gathers) do
    local was = before.gathers[name] or { count = 0 }
    if gather.count > was.count then
      error(("%s was gathered %d times"):format(name, gather.count - was.count))
    end
  end
  return found
end

--- `expected`: {count, bytes} by kind; the kinds that it lacks send nothing.
function traffic.expect_only(found, expected)
  local function text(of)
    local lines = {}
    for _, kind in ipairs(traffic.kinds) do
      local count, bytes = of(kind)
      lines[#lines + 1] = ("%s: %d of %d bytes"):format(kind, count, bytes)
    end
    return table.concat(lines, ", ")
  end
  testing.expect_equal(
    text(function(kind) return found[kind].count, found[kind].bytes end),
    text(function(kind) return unpack(expected[kind] or { 0, 0 }) end))
end

return traffic
