--- Adapter files of diffusers and of kohya's scripts, for the UNet and the text encoders of a
--- pipeline: both are one file of safetensors, with different names.
local checks = require "redco.models.checks"
local fail = require "redco.fail"
local layers = require "redco.lora.layers"
local native = require "redco.native"
local original_names = require "redco.diffusion.original_names"
local torch = require "redco.torch"
local tree = require "redco.tree"

local lora = {}

local file_name = "pytorch_lora_weights.safetensors"

-- Endings of names that mean one of the two matrices.
local endings = {
  { "%.lora_A%.weight$", "lora_A" }, { "%.lora_B%.weight$", "lora_B" },
  { "%.lora_down%.weight$", "lora_A" }, { "%.lora_up%.weight$", "lora_B" },
  { "%.lora%.down%.weight$", "lora_A" }, { "%.lora%.up%.weight$", "lora_B" },
  { "%.lora_linear_layer%.down%.weight$", "lora_A" },
  { "%.lora_linear_layer%.up%.weight$", "lora_B" },
  { "_lora%.down%.weight$", "lora_A" }, { "_lora%.up%.weight$", "lora_B" },
  { "%.alpha$", "alpha" },
}

-- The beginnings of kohya's names by part; the first is written if there is one text encoder.
local kohya = {
  unet = { "lora_unet_" }, transformer = {}, text_encoder = { "lora_te_", "lora_te1_" },
  text_encoder_2 = { "lora_te2_" }, text_encoder_3 = {},
}

-- Returns the layers of the parts by each name that a file may have for them.
local function by_file_name(pipeline, all)
  local found = {}
  local to_original = pipeline.unet and original_names.unet(pipeline.unet.config)
  for _, layer in ipairs(all) do
    local part, name = layer.name:match "^([^.]+)%.(.*)$"
    found[layer.name] = layer
    for _, start in ipairs(kohya[part] or {}) do
      found[start .. name:gsub("%.", "_")] = layer
    end
    local original = part == "unet" and to_original(name .. ".weight") or nil
    if original then
      found["lora_unet_" .. original:gsub("%.weight$", ""):gsub("%.", "_")] = layer
    end
  end
  return found
end

-- Splits a name in a file into the layer's name and "lora_A", "lora_B" or "alpha".
local function parse(path, key)
  for _, row in ipairs(endings) do
    local at = key:find(row[1])
    if at then
      local name = key:sub(1, at - 1):gsub("%.processor%.", "."):gsub("%.to_out$", ".to_out.0")
      return name, row[2]
    end
  end
  fail("%s: expected names like unet.X.lora_A.weight or lora_unet_X.lora_down.weight, got %s", path,
    key)
end

-- Returns the settings of peft that newer files of diffusers have, {["unet.lora_alpha"] = 8, ...}.
local function settings_of(path)
  local file = io.open(path, "rb")
  local start = file and file:read(8)
  if not start then return {} end
  local size = 0
  for i = 8, 1, -1 do size = size * 256 + start:byte(i) end
  local header = native.json_decode(path, file:read(size))
  file:close()
  local text = (header.__metadata__ or {}).lora_adapter_metadata
  return text and native.json_decode(path, text) or {}
end

local function check_settings(path, settings, part)
  for _, key in ipairs { "alpha_pattern", "use_dora", "lora_bias" } do
    local value = settings[part .. "." .. key]
    if value and (type(value) ~= "table" or next(value) ~= nil) then
      fail("%s: %s.%s is not supported", path, part, key)
    end
  end
end

local function scaling_of(entry, settings, r)
  if entry.alpha then return entry.alpha:item() / r end
  local part = entry.layer.name:match "^[^.]+"
  local alpha = settings[part .. ".lora_alpha"]
  if not alpha then return 1 end
  return alpha / (settings[part .. ".use_rslora"] and math.sqrt(r) or r)
end

local function place(path, name, entry, settings)
  local layer, a, b = entry.layer, entry.lora_A, entry.lora_B
  if not (a and b) then fail("%s: %s has no %s", path, name, a and "lora_B" or "lora_A") end
  local weight = layer:get "weight"
  if weight:dim() ~= 2 then
    fail("%s: %s is a convolution; only adapters of linear layers are supported", path, layer.name)
  end
  local n_in, n_out = layer:sizes()
  local r = a:size(0)
  if a:dim() ~= 2 or b:dim() ~= 2 or a:size(1) ~= n_in or b:size(0) ~= n_out or b:size(1) ~= r then
    fail("%s: %s has matrices [%s] and [%s], expected [%d, %d] and [%d, %d] beside its weight",
      path, name, table.concat(a.shape, ", "), table.concat(b.shape, ", "), r, n_in, n_out, r)
  end
  for matrix, tensor in pairs { lora_A = a, lora_B = b } do
    checks.dtype(path, name, tensor.dtype)
    local parameter = torch.no_grad(function()
      return native.parameter(tensor.shape, { dtype = weight.dtype }):copy_(tensor)
    end)
    checks.finite(path, { name }, { [name] = parameter })
    layer:set_matrix(matrix, parameter)
  end
  layer:set("lora_scaling", scaling_of(entry, settings, r))
end

local function is_directory(path)
  local file = io.open(path .. "/" .. file_name, "rb")
  return file ~= nil and (file:close() or true)
end

--- Returns the parameters of a pipeline with the adapters of a file, or of a folder with the file
--- of diffusers' name.
function lora.load(pipeline, path, params)
  if is_directory(path) then path = path .. "/" .. file_name end
  local result = tree.map(function(leaf) return leaf end, params)
  local weights, entries = native.open_weights(path), {}
  local found, settings = by_file_name(pipeline, layers.of(result)), settings_of(path)
  for _, key in ipairs(weights:keys()) do
    local name, kind = parse(path, key)
    local layer = found[name]
    if not layer then fail("%s: there is no layer for %s in the pipeline", path, key) end
    entries[name] = entries[name] or { layer = layer }
    entries[name][kind] = weights:tensor(key)
  end
  for part in pairs(kohya) do check_settings(path, settings, part) end
  local names = {}
  for name in pairs(entries) do names[#names + 1] = name end
  table.sort(names)
  if #names == 0 then fail("%s: there are no adapters in this file", path) end
  for _, name in ipairs(names) do place(path, name, entries[name], settings) end
  return result
end

-- What a file has for a layer: names and tensors, by format.
local writers = {
  -- The form has no place for alpha, which readers take to be the rank.
  diffusers = function(tensors, layer, a, b, scaling)
    tensors[layer.name .. ".lora_A.weight"] = a
    tensors[layer.name .. ".lora_B.weight"] = scaling ~= 1 and b * scaling or b
  end,
  kohya = function(tensors, layer, a, b, scaling, has_two)
    local part, name = layer.name:match "^([^.]+)%.(.*)$"
    local starts = kohya[part]
    local start = starts[has_two and 2 or 1] or starts[1]
      or fail("diffusion.save_lora: kohya's format has no place for adapters of the %s here", part)
    local stem = start .. name:gsub("%.", "_")
    tensors[stem .. ".lora_down.weight"], tensors[stem .. ".lora_up.weight"] = a, b
    tensors[stem .. ".alpha"] = torch.tensor(scaling * a:size(0), { dtype = a.dtype })
  end,
}

--- Writes the adapters of `params` into a folder.
function lora.save(dir, params, format)
  local write = writers[format]
  if not write then
    fail("diffusion.save_lora: format: expected \"diffusers\" or \"kohya\", got %s",
      tostring(format))
  end
  local tensors = {}
  torch.no_grad(function()
    for _, layer in ipairs(layers.of(params)) do
      local a = layer:matrix "lora_A"
      if a then
        if not kohya[layer.name:match "^[^.]+"] then
          fail("diffusion.save_lora: %s is in no unet, transformer or text encoder: "
            .. "expected the parameters of a pipeline, {unet = ..., text_encoder = ...}",
            layer.name)
        end
        write(tensors, layer, a, layer:matrix "lora_B", layer:get "lora_scaling",
          params.text_encoder_2 ~= nil)
      end
    end
  end)
  if next(tensors) == nil then fail "diffusion.save_lora: there is no adapter in the parameters" end
  native.save_weights(dir, tensors, { stem = file_name:gsub("%.safetensors$", "") })
end

return lora
