--- Tensors and ATen's operators, under PyTorch's names.
local torch = require "redco.torch.native"

return torch
