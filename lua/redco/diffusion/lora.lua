--- Adapter files of diffusers and of kohya's scripts, for the UNet and the text encoders of a
--- pipeline: both are one file of safetensors, with different names.
local check_choice = require "redco.check_choice"
local checks = require "redco.models.checks"
local fail = require "redco.fail"
local kohya = require "redco.diffusion.lora_kohya"
local layers = require "redco.lora.layers"
local saved = require "redco.lora.saved"
local names_of = require "redco.names_of"
local native = require "redco.native"
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

-- Returns the layers that each name of a file may mean: {name = {{layer, form}, ...}}.
local function by_file_name(pipeline, all)
  local found = kohya.layers_by_name(pipeline, all)
  for _, layer in ipairs(all) do found[layer.name] = { { layer = layer } } end
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
  local file, size = native.byte_file(path, "a file of weights"), 0
  if #file < 8 then return {} end
  local start = file:bytes(0, 8)
  for i = 8, 1, -1 do size = size * 256 + start:byte(i) end
  local header = native.json_decode(path, file:bytes(8, size))
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

local function scaling_of(alpha, settings, layer, r)
  if alpha then return alpha:item() / r end
  local part = layer.name:match "^[^.]+"
  alpha = settings[part .. ".lora_alpha"]
  if not alpha then return 1 end
  return alpha / (settings[part .. ".use_rslora"] and math.sqrt(r) or r)
end

local function check_shapes(path, name, layer, a, b, n_parts)
  if layer:get("weight"):dim() ~= 2 then
    fail("%s: %s is a convolution; only adapters of linear layers are supported", path, layer.name)
  end
  local n_in, n_out = layer:sizes()
  local r = a:size(0)
  if a:dim() ~= 2 or b:dim() ~= 2 or a:size(1) ~= n_in or b:size(0) ~= n_parts * n_out
    or b:size(1) ~= r then
    fail("%s: %s has matrices [%s] and [%s], expected [%d, %d] and [%d, %d] beside its weight",
      path, name, table.concat(a.shape, ", "), table.concat(b.shape, ", "), r, n_in,
      n_parts * n_out, r)
  end
end

-- Gives the layer an adapter. `form`: how the file holds its rows.
local function place(path, name, entry, layer, form, settings)
  local a, b = entry.lora_A, entry.lora_B
  if not (a and b) then fail("%s: %s has no %s", path, name, a and "lora_B" or "lora_A") end
  check_shapes(path, name, layer, a, b, type(form) == "number" and 3 or 1)
  local scaling = scaling_of(entry.alpha, settings, layer, a:size(0))
  a, b = kohya.own_matrices(a, b, form)
  if not a then return end
  for _, row in ipairs { { "lora_A", a }, { "lora_B", b } } do
    local matrix, tensor = unpack(row)
    checks.dtype(path, name, tensor.dtype)
    local parameter = torch.no_grad(function()
      return native.parameter(tensor.shape, { dtype = layer:get("weight").dtype }):copy_(tensor)
    end)
    checks.finite(path, { name }, { [name] = parameter })
    layer:set_matrix(matrix, parameter)
  end
  layer:set("lora_scaling", scaling)
end

local function is_directory(path) return native.file_exists(path .. "/" .. file_name) end

--- Returns the parameters of a pipeline with the adapters of a file, or of a folder with the file
--- of diffusers' name.
function lora.load(pipeline, path, params)
  if is_directory(path) then path = path .. "/" .. file_name end
  local result = tree.map(function(leaf) return leaf end, params)
  local weights, entries = native.open_weights(path), {}
  local found, settings = by_file_name(pipeline, layers.of(result)), settings_of(path)
  for _, key in ipairs(weights:keys()) do
    local name, kind = parse(path, key)
    if not found[name] then fail("%s: there is no layer for %s in the pipeline", path, key) end
    entries[name] = entries[name] or {}
    entries[name][kind] = weights:tensor(key)
  end
  for part in pairs(params) do check_settings(path, settings, part) end
  local names = names_of(entries)
  if #names == 0 then fail("%s: there are no adapters in this file", path) end
  for _, name in ipairs(names) do
    for _, target in ipairs(found[name]) do
      place(path, name, entries[name], target.layer, target.form, settings)
    end
  end
  return result
end

-- Functions by format that return the tensors of a file:
-- function(adapters {layer, a, b, scaling}, all layers, params).
local writers = {
  -- The format cannot store alpha; readers assume that it equals the rank.
  diffusers = function(adapters)
    local tensors = {}
    for _, adapter in ipairs(adapters) do
      local name, scaling = adapter.layer.name, adapter.scaling
      tensors[name .. ".lora_A.weight"] = adapter.a
      tensors[name .. ".lora_B.weight"] = scaling ~= 1 and adapter.b * scaling or adapter.b
    end
    return tensors
  end,
  kohya = function(adapters, all, params)
    return kohya.tensors(adapters, all, params.text_encoder_2 ~= nil)
  end,
}

-- Returns the adapters of layers, in their order.
local function adapters_of(all)
  local adapters = {}
  for _, layer in ipairs(all) do
    local a = layer:matrix "lora_A"
    if a then
      if not kohya.is_part(layer.name:match "^[^.]+") then
        fail("diffusion.save_lora: %s is in no unet, transformer or text encoder: "
          .. "expected the parameters of a pipeline, {unet = ..., text_encoder = ...}", layer.name)
      end
      if layer:get "lora_magnitude_vector" or layer:get "lora_init" then
        fail("diffusion.save_lora: the adapter of %s has use_dora or an init_lora_weights that "
          .. "changes the base, for which the file has no place; pipeline.save_pretrained(dir, "
          .. "{ params = redco.lora.merge(params) }) writes all", layer.name)
      end
      adapters[#adapters + 1] = { layer = layer, a = a, b = layer:matrix "lora_B",
        scaling = layer:get "lora_scaling" }
    end
  end
  if #adapters == 0 then fail "diffusion.save_lora: there is no adapter in the parameters" end
  return adapters
end

--- Writes the adapters of `params` into a folder.
function lora.save(dir, params, format)
  check_choice("diffusion.save_lora", "format", format, "diffusers", "kohya")
  local write = writers[format]
  local all = layers.of(params)
  for name in pairs((saved.trained(params))) do
    -- Vectors of added tokens are in a separate file.
    if not name:find "added_tokens" then
      fail("diffusion.save_lora: %s was trained without an adapter, and the file has no place for "
        .. "it; pipeline.save_pretrained(dir, { params = redco.lora.merge(params) }) writes all",
        name)
    end
  end
  local tensors = torch.no_grad(write, adapters_of(all), all, params)
  native.save_weights(dir, tensors, { stem = file_name:gsub("%.safetensors$", "") })
end

return lora
