--- A server on several processes: the first has the clients, and all compute the answers.
local torch = require "redco.torch"
local native = require "redco.native"
local tree = require "redco.tree"

local processes = {}

local function nothing() end

--- Stands for a request on the other processes.
processes.no_request = { respond = nothing, begin = nothing, write = nothing, finish = nothing,
  is_open = function() return true end }

--- Returns parameters [...], the same on all processes, laid out over those that share a copy of
--- the model.
function processes.lay_out(deployer, model, params)
  local placements = {}
  if deployer.mesh.mp > 1 then
    local decisions = deployer:get_sharding_rules(params, function(imagined)
      local ids = torch.zeros({ 1, 2 }, { dtype = "int64" })
      local hidden = model.hidden_states(imagined, { input_ids = ids })
      return model.logits(imagined, hidden:select(1, -1))
    end)
    for _, decision in ipairs(decisions) do placements[decision[1]] = decision[2] end
  end
  local leaves, structure = tree.flatten(params)
  for i, path in ipairs(tree.paths(params)) do
    if torch.is_tensor(leaves[i]) then
      leaves[i] = native.shard(leaves[i], { mp = placements[path] })
    end
  end
  return tree.unflatten(structure, leaves)
end

return processes
