-- quantize.lua FOLDER TYPE...: writes the values of FOLDER/values.safetensors in blocks of each
-- type to FOLDER/blocks.safetensors.
local native = require "redco.native"
local torch = require("redco").torch

local folder, blocks = arg[1], {}
local values = torch.load(folder .. "/values.safetensors").values
for i = 2, #arg do blocks[arg[i]] = native.quantize(values, arg[i]:lower()) end
torch.save(blocks, folder .. "/blocks.safetensors")
