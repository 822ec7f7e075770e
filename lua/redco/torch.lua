--- Tensors and ATen's operators, under PyTorch's names.
local torch = require "redco.torch.native"

-- Functions in PyTorch that LibTorch has as methods only.
torch.numel = torch.Tensor.numel

return torch
