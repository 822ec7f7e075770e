-- Measures the bytes that a piece of a program sends, by kind of collective.
local redco = require "redco"
local testing = require "testing"

local traffic = { kinds = { "all_reduce", "all_gather", "reduce_scatter", "all_to_all" } }

--- How often operators that have no rule, or none for their arguments, have gathered these so far:
--- by name.
function traffic.gathered_without_rule()
  local calls = {}
  for _, move in ipairs(redco.sharding_counters().moves) do
    if move.cause == "operator without rule" and move.is_gather then
      calls[move.what] = (calls[move.what] or 0) + move.calls
    end
  end
  return calls
end

--- What `body` sends on a group, by kind; an error where an operator had to gather its arguments.
function traffic.sent(group, body)
  local before, calls_before = redco.sharding_counters(), traffic.gathered_without_rule()
  body()
  local after, found = redco.sharding_counters(), {}
  for _, kind in ipairs(traffic.kinds) do
    local a, b = before.collectives[group][kind], after.collectives[group][kind]
    found[kind] = { count = b.count - a.count, bytes = b.bytes - a.bytes }
  end
  for name, calls in pairs(traffic.gathered_without_rule()) do
    local n = calls - (calls_before[name] or 0)
    if n > 0 then error(("%s was gathered %d times"):format(name, n)) end
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
