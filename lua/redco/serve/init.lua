--- redco.serve: a model for clients of the OpenAI API.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local new_server = require "redco.serve.server"
local registry = require "redco.registry"
local torch = require "redco.torch"

local complete = arguments("redco.serve", {
  host = "127.0.0.1", port = 8000, name = "model", max_rows = 8, kept_rows = 8,
  max_queue = 64, cache_implementation = "dynamic",
}, { "token", "max_length", "deployer" })

-- Kinds of options: a description, and a check.
local function whole(least, most)
  return { ("a whole number from %d to %d"):format(least, most), function(v)
    return type(v) == "number" and v % 1 == 0 and v >= least and v <= most
  end }
end
local text = { "a string, not empty", function(v) return type(v) == "string" and v ~= "" end }
local kinds = {
  host = text, port = whole(0, 65535), name = text, token = text, max_rows = whole(1, 4096),
  kept_rows = whole(0, 1e6),
  max_queue = whole(0, 1e6), max_length = whole(2, 1e7),
  cache_implementation = { "", function() return true end },  -- new_batch checks it
  deployer = { "a Deployer", function(v) return type(v) == "userdata" end },
}

local longest_default = 4096

return registry.define("redco.serve", [[
serve(model, params: table, tokenizer, {host = "127.0.0.1", port = 8000, token: string = nil,
  name = "model", max_rows = 8, kept_rows = 8, max_queue = 64, max_length: integer = nil,
  cache_implementation = "dynamic", deployer = nil}) -> Server
Serves a model by HTTP with the API of OpenAI: /v1/chat/completions, /v1/completions and /v1/models.
The server answers while `server:run()` runs, or at each `server:poll()`.
  port: 0 takes any that is free
  token: the API key that clients must send; needed where other machines can connect
  name: the model's name in the API
  max_rows: how many answers are computed at once
  kept_rows: how many answers keep their keys and values for the next turns of their conversations,
    which then read only what is new. `poll` forgets them
  max_queue: how many further answers may wait; then requests get the status 429
  max_length: how many tokens prompt and answer may have together; by default what the model reads,
    at most 4096
  cache_implementation: "static" replays CUDA graphs on a GPU, as in `redco.models.new_batch`
  deployer: on several processes, the Deployer that connects them. The first process listens, and all
    compute: they make the same calls, with parameters that may be sharded]],
function(model, params, tokenizer, options)
  local o = complete(options)
  for name, value in pairs(o) do
    local expected, fits = unpack(kinds[name])
    if not fits(value) then fail("redco.serve: %s: expected %s, got %s", name, expected, value) end
  end
  local all = { model = model, params = params, tokenizer = tokenizer }
  for name, value in pairs(o) do all[name] = value end
  for name, tensor in pairs(params) do
    if not o.deployer and torch.is_tensor(tensor) and tensor:is_sharded() then
      fail("redco.serve: the parameter %s is spread over several processes: give the Deployer that "
        .. "connects them as `deployer`", name)
    end
  end
  local context = model.config.max_position_embeddings or model.config.n_positions
  all.max_length = o.max_length or math.min(context or longest_default, longest_default)
  if context and all.max_length > context then
    fail("redco.serve: max_length is %d, and the model reads at most %d tokens", all.max_length,
      context)
  end
  if o.deployer and o.deployer.n_processes == 1 then all.deployer = nil end
  all.vocab_size = model.config.vocab_size
  return new_server(all)
end)
