--- Low-rank adapters (Hu et al., 2021).
local lora = {}

--- y, the output of the layer `name` for x, with what its adapter adds, if it has one.
function lora.added(params, name, _, y)
  return y
end

return lora
