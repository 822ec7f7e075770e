--- Streams of examples whose number is not known.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"

local options = arguments("stream", { cycle = true }, { "chunk_size" })
return registry.define("redco.data.stream", [[
stream(open: function, {chunk_size: integer, cycle = true}) -> function(epoch_idx) -> list
Returns a function to be used as train_examples of `Trainer:fit`: each epoch trains on the next
chunk_size examples of a stream, so set max_steps and a large n_epochs. open() starts the stream: it
returns a function that returns the next example on each call, and nil at the end. `cycle` then
starts it again; without it the last chunk is smaller, and another epoch is an error. `Trainer:fit`
shuffles each chunk. A resumed run starts the stream again and skips what it has trained on, so
open() must give the same examples each time, on all processes.]], function(open, given)
  local o = options(given)
  if type(open) ~= "function" then
    fail("data.stream: expected a function that starts the stream, got %s", native.describe(open))
  end
  local size = o.chunk_size
  check_integer("data.stream", "chunk_size", size, 1)
  local read, n_read, n_in_pass = nil, 0, 0

  local function start()
    read, n_in_pass = open(), 0
    if type(read) ~= "function" then
      fail("data.stream: the function that starts the stream returned a %s, expected a function",
        type(read))
    end
  end

  -- Returns the next example; nil at the end of a stream that is not cycled.
  local function next_example()
    local example = read()
    if example == nil then
      if n_in_pass == 0 then fail "data.stream: the stream has no examples" end
      if not o.cycle then return nil end
      start()
      example = read()
      if example == nil then fail "data.stream: the stream has no examples the second time" end
    end
    n_read, n_in_pass = n_read + 1, n_in_pass + 1
    return example
  end

  return function(epoch_idx)
    local first = (epoch_idx or 0) * size
    if not read or n_read > first then
      start()
      n_read = 0
    end
    local examples = {}
    while n_read < first + size do
      local is_skipped = n_read < first
      local example = next_example()
      if example == nil then break end
      if not is_skipped then examples[#examples + 1] = example end
    end
    if #examples == 0 then
      fail("data.stream: the stream ended after %.0f examples, before epoch %.0f", n_read,
        epoch_idx or 0)
    end
    return examples
  end
end)
