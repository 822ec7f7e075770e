--- Tensors and ATen's operators, under PyTorch's names.
local ffi = require "ffi"
local registry = require "redco.registry"
local torch = require "redco.torch.native"

-- A function in PyTorch that LibTorch has only as a method.
torch.numel = torch.Tensor.numel

local element_types = {
  float64 = "double*", float32 = "float*", float16 = "uint16_t*", bfloat16 = "uint16_t*",
  int64 = "int64_t*", int32 = "int32_t*", int16 = "int16_t*", int8 = "int8_t*",
  uint8 = "uint8_t*", bool = "bool*",
}

-- A dtype is its name, so `torch.float32` is the string "float32".
for name in pairs(element_types) do torch[name] = name end

for _, family in ipairs { "fft", "linalg", "special" } do
  torch[family] = registry.define("torch." .. family, ([[
torch.%s
ATen's operators of this family. `torch.%s.NAME` is `torch.%s_NAME`.]]):format(family, family,
    family), setmetatable({}, {
      __index = function(_, name) return torch[family .. "_" .. name] end,
    }))
end

torch.Tensor.data_ptr = registry.define("Tensor:data_ptr", [[
data_ptr(self) -> FFI pointer
Returns the address of the elements of a contiguous CPU tensor, as a pointer to their C type
(uint16_t for 16-bit floating-point types). LuaJIT compiles loops over `p[0]` to `p[n - 1]`. The
index is not checked, and you must keep the tensor while you use the pointer.]], function(self)
  local element_type = element_types[self.dtype]
  if not element_type then error("Tensor:data_ptr: no C type for " .. self.dtype, 2) end
  return ffi.cast(element_type, self:address())
end)

return registry.define("torch", [[
torch
Tensors and ATen's operators, with PyTorch's names. An operator is a function and a method:
`torch.matmul(a, b)` and `a:matmul(b)`. The last argument may be a table of named arguments:
`x:sum({0}, {keepdim = true})`. `help "torch.sum"` shows the schemas of an operator. Dimensions and
indices count from 0. A dtype is its name: `torch.float32` is "float32".]], torch)
