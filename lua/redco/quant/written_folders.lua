--- Quantized weights in the forms of Hugging Face's folders, which folders.lua reads:
--- compressed-tensors, bitsandbytes with 4 bits, and gpt-oss's own.
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

-- Packs one 4-bit number for each element: [n, m] -> [n, m / 8] of int32, the first number in the
-- lowest bits.
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

-- A form with one byte for each number, viewed as a dtype.
local function of_bytes(dtype, format, weights)
  return {
    config = compressed(format, weights),
    write = function(blocks, put)
      put("weight", numbers_of(blocks, 4):view(dtype))
      put("weight_scale", scales_of(blocks))
    end,
  }
end

-- By type: `config`, and write(blocks, put) with the tensors X.ENDING for the weight X.weight, or
-- X_ENDING for the weight X of experts where the form is `of_experts`.
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

forms.mxfp4 = {
  of_experts = true,
  config = { quant_method = "mxfp4" },
  -- blocks [experts, out, groups, 17]. A byte of a block has the numbers i and i + 16; a byte in a
  -- file has neighbours.
  write = function(blocks, put)
    local numbers = blocks:narrow(-1, 1, 16)
    local pairs = torch.cat({ numbers:bitwise_and(15), numbers:bitwise_right_shift(4) }, -1)
      :unflatten(-1, { 16, 2 })
    put("blocks", pairs:select(-1, 0):bitwise_or(pairs:select(-1, 1):bitwise_left_shift(4)))
    put("scales", blocks:select(-1, 0):contiguous())
  end,
}

-- By method: the key that lists the layers that stay floats.
local skipped = { bitsandbytes = "llm_int8_skip_modules", mxfp4 = "modules_to_not_convert" }

-- Whether 8 is the zero of all groups of 4 bits.
local function are_symmetric(params)
  for name, value in pairs(params) do
    if params[name .. "_type"] and not value:select(-1, 4):eq(8):all():item() then return false end
  end
  return true
end

-- Whether a form can have a weight.
local function fits(form, params, name)
  if form.of_experts then return params[name .. "_is_transposed"] == true end
  return params[name]:dim() == 3 and name:find "%.weight$" ~= nil
end

-- Lists the types that a folder can have of a weight.
local function fitting(params, name)
  local names = {}
  for type, form in pairs(forms) do
    if fits(form, params, name) then names[#names + 1] = type end
  end
  table.sort(names)
  return #names > 0 and ", only " .. table.concat(names, ", ") or ""
end

-- Returns the type of the quantized weights of params, nil without any.
local function type_of(params)
  local first, found
  for name, value in pairs(params) do
    local type = torch.is_tensor(value) and params[name .. "_type"]
    if type and found and found ~= type then
      fail("save_pretrained: %s is %s and %s is %s: a folder has one type", first, found, name,
        type)
    end
    if type and not (forms[type] and fits(forms[type], params, name)) then
      fail("save_pretrained: %s is quantized to %s, which no folder has%s: "
        .. "model.save_gguf(path) writes it, redco.quant.dequantize(params) makes floats", name,
        type, fitting(params, name))
    end
    if type then first, found = name, type end
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
      if torch.is_tensor(value) and params[name .. "_type"] then
        local prefix = form.of_experts and name .. "_" or stem .. "."
        form.write(value:full(), function(ending, tensor)
          written[prefix .. ending] = tensor
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
  config[skipped[config.quant_method] or "ignore"] = ignored
  return written, config
end
