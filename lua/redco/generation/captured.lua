--- Steps of generation that one GPU captures and replays.
local native = require "redco.native"
local torch = require "redco.torch"

--- Returns a function that gives the result of f(), a tensor. If `ids` are on a GPU and no
--- parameter is sharded, its second call captures the work of f as a CUDA graph, which later calls
--- replay.
return function(params, ids, f)
  for _, leaf in pairs(params) do
    if torch.is_tensor(leaf) and leaf:is_sharded() then return f end
  end
  local function_of_ids = native.captured(ids, f)
  return function() return function_of_ids:run() end
end
