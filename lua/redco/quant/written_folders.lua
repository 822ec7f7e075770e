--- Quantized weights in the forms of Hugging Face's folders, which folders.lua reads:
--- compressed-tensors, and bitsandbytes with 4 bits.
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"

-- The elements of a block.
local size = 64

-- The scales of blocks [out, n, bytes]: [out, n].
local function scales_of(blocks)
  return blocks:narrow(-1, 0, 4):contiguous():view "float32":squeeze(-1)
end

-- The bytes of blocks from `first` on, as a matrix [out, bytes].
local function numbers_of(blocks, first)
  return blocks:narrow(-1, first, blocks:size(-1) - first):flatten(1):contiguous()
end

-- One number of 4 bits for each element [n, m] -> [n, m / 8] of int32, the first in the lowest
-- bits.
local function joined_nibbles(t)
  local pairs = t:contiguous():view { t:size(0), t:size(1) / 2, 2 }
  return pairs:select(-1, 0):bitwise_or(pairs:select(-1, 1):bitwise_left_shift(4)):contiguous()
    :view "int32"
end

-- The configuration of compressed-tensors, which has one group of layers.
local function compressed(format, weights)
  weights.strategy, weights.group_size, weights.dynamic = "group", size, false
  return { quant_method = "compressed-tensors", format = format,
    quantization_status = "compressed",
    config_groups = { group_0 = { targets = { "Linear" }, weights = weights, format = format } } }
end

-- Numbers of a byte each, as a dtype.
local function of_bytes(dtype, format, weights)
  return {
    config = compressed(format, weights),
    write = function(blocks, put)
      put("weight", numbers_of(blocks, 4):view(dtype))
      put("weight_scale", scales_of(blocks))
    end,
  }
end

-- By type: `config`, and write(blocks, put) with the tensors X.ENDING for the weight X.weight.
local forms = {
  int8 = of_bytes("int8", "int-quantized", { num_bits = 8, type = "int", symmetric = true }),
  fp8 = of_bytes("float8_e4m3fn", "float-quantized",
    { num_bits = 8, type = "float", symmetric = true }),
  int4 = {
    config = compressed("pack-quantized", { num_bits = 4, type = "int", symmetric = false }),
    symmetric = compressed("pack-quantized", { num_bits = 4, type = "int", symmetric = true }),
    write = function(blocks, put, _, is_symmetric)
      local n_out, n = blocks:size(0), blocks:size(1)
      put("weight_packed", numbers_of(blocks, 5):view "int32")
      put("weight_scale", scales_of(blocks))
      put("weight_shape", torch.tensor({ n_out, n * size }, { dtype = "int64" }))
      if is_symmetric then return end
      local zeros = blocks:select(-1, 4):t()
      local padding = -n_out % 8
      if padding > 0 then
        zeros = torch.cat({ zeros, torch.zeros({ n, padding }, { dtype = "uint8" }) }, 1)
      end
      put("weight_zero_point", joined_nibbles(zeros):t():contiguous())
    end,
  },
}

-- Returns the values of a type's 16 numbers.
local function code_of(type)
  local block = { 0, 0, 128, 63 }  -- the scale 1
  for i = 0, 31 do block[5 + i] = i % 8 * 34 + 1 end  -- 0 and 1, 2 and 3, ...
  return native.dequantize(torch.tensor({ { block } }, { dtype = "uint8" }), type):view { -1 }
    :narrow(0, 0, 16)
end

for _, type in ipairs { "nf4", "fp4" } do
  forms[type] = {
    config = { quant_method = "bitsandbytes", load_in_4bit = true, load_in_8bit = false,
      bnb_4bit_quant_type = type, bnb_4bit_use_double_quant = false,
      bnb_4bit_compute_dtype = "float32", bnb_4bit_quant_storage = "uint8" },
    write = function(blocks, put, dtype)
      local n_out, n = blocks:size(0), blocks:size(1)
      local state = native.json_encode("quant_state", { quant_type = type, blocksize = size,
        dtype = dtype, shape = { n_out, n * size } })
      put("weight", numbers_of(blocks, 4):view { -1, 1 })
      put("weight.absmax", scales_of(blocks):flatten():contiguous())
      put("weight.quant_map", code_of(type):contiguous())
      put("weight.quant_state.bitsandbytes__" .. type,
        torch.tensor({ state:byte(1, -1) }, { dtype = "uint8" }))
    end,
  }
end

-- Whether 8 is the zero of all groups of 4 bits.
local function are_symmetric(params)
  for name, value in pairs(params) do
    if params[name .. "_type"] and not value:select(-1, 4):eq(8):all():item() then return false end
  end
  return true
end

-- Returns the type of the quantized weights of params, nil without any.
local function type_of(params)
  local first, found
  for name, type in pairs(params) do
    if name:find "%.weight_type$" then
      if found and found ~= type then
        fail("save_pretrained: %s is %s and %s is %s: a folder has one type", first, found, name,
          type)
      end
      first, found = name, type
    end
  end
  if found and not forms[found] then
    local names = {}
    for name in pairs(forms) do names[#names + 1] = name end
    table.sort(names)
    fail("save_pretrained: %s is quantized to %s, which no folder has, only %s: "
      .. "model.save_gguf(path) writes it, redco.quant.dequantize(params) makes floats", first,
      found, table.concat(names, ", "))
  end
  return found
end

--- Returns the tensors of a folder, and its quantization_config, nil without quantized weights.
--- `linear_names` has the names of weights of linear layers, `dtype` that of what stays floats.
return function(params, linear_names, dtype)
  local type = type_of(params)
  if not type then return params end
  local form, written, ignored = forms[type], {}, {}
  local is_symmetric = form.symmetric and are_symmetric(params)
  torch.no_grad(function()
    for name, value in pairs(params) do
      local stem = name:match "^(.*)%.weight$"
      if stem and params[name .. "_type"] then
        form.write(value:full(), function(ending, tensor)
          written[stem .. "." .. ending] = tensor
        end, dtype, is_symmetric)
      elseif torch.is_tensor(value) then
        written[name] = value
        if stem and linear_names[name] then ignored[#ignored + 1] = stem end
      end
    end
  end)
  table.sort(ignored)
  local config = {}
  for key, value in pairs(is_symmetric and form.symmetric or form.config) do config[key] = value end
  config[config.quant_method == "bitsandbytes" and "llm_int8_skip_modules" or "ignore"] = ignored
  return written, config
end
