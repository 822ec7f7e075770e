-- Writes weights of every dtype that Python's numpy has too: in one file, and in several.
local native = require "redco.native"
local torch = require "redco.torch"
local dtypes = { "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8",
  "bool" }
local params = {}
for _, dtype in ipairs(dtypes) do
  local matrix = torch.arange(6):remainder(dtype == "bool" and 2 or 6):view { 2, 3 }
  params[dtype .. ".matrix"] = matrix:to(dtype)
  params[dtype .. ".scalar"] = torch.tensor(1):to(dtype)
  params[dtype .. ".empty"] = torch.empty({ 0, 3 }, { dtype = dtype })
end
native.save_weights(arg[1] .. "/one", params)
native.save_weights(arg[1] .. "/several", params, { max_shard_size = 64 })
