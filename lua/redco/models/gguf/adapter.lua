--- Low-rank adapters as GGUF files of llama.cpp: TENSOR.lora_a [r, in] and TENSOR.lora_b [out, r].
local convert = require "redco.models.gguf.convert"
local fail = require "redco.fail"
local layers = require "redco.lora.layers"
local names = require "redco.models.gguf.names"
local native = require "redco.native"
local new_values = require "redco.models.gguf.values"
local saved = require "redco.lora.saved"
local torch = require "redco.torch"
local write = require "redco.models.gguf.write"

local adapter = {}

local function without_adapters(params)
  local base = {}
  for name, value in pairs(params) do
    if not layers.is_adapter(name) then base[name] = value end
  end
  return base
end

-- Returns the architecture, the row and the settings of a model.
local function facts_of(model)
  local architecture, row = names.row_of(model, without_adapters(model.params))
  local c = names.settings(model.family, model.config)
  if row.settle then row.settle(c) end
  return architecture, row, c
end

-- Returns the name of the weight in the file, and the entry of the row's conversions.
local function place_of(row, layer)
  local name, expert, part = names.of(row, layer.parameter)
  if not name or expert or layer:is_stack() then
    fail("lora.save_gguf: an adapter of %s has no place in GGUF; redco.lora.merge adds it to the "
      .. "weight", layer.name)
  end
  return name, row.convert[part]
end

--- Writes the adapters of params.
function adapter.save(path, model, params)
  local architecture, row, c = facts_of(model)
  local whole = next((saved.trained(params)))
  for name in pairs((saved.trained(params))) do
    if not layers.is_adapter(name) then whole = name end
  end
  if whole then
    fail("lora.save_gguf: %s is trained whole, for which an adapter in GGUF has no place; "
      .. "redco.lora.merge and model.save_gguf write the model", whole)
  end
  local tensors, matrices, file_alpha = {}, {}, nil
  local function add(name, matrix)
    tensors[#tensors + 1] = { name, "f32", matrix.shape }
    matrices[#matrices + 1] = matrix
  end
  torch.no_grad(function()
    for _, layer in ipairs(layers.with_stacks(params)) do
      if layer:has_adapter() then
        if layer:get "lora_magnitude_vector" then
          fail("lora.save_gguf: %s has the magnitudes of DoRA, for which GGUF has no place; "
            .. "redco.lora.merge adds the adapter to the weight", layer.name)
        end
        local name, how = place_of(row, layer)
        if name == "output.weight" and c.tie_word_embeddings then
          fail "lora.save_gguf: the output layer, tied to the embedding, has an adapter alone"
        end
        local is_embedding = layer:get "lora_embedding_A" ~= nil
        local a = is_embedding and layer:get "lora_embedding_A":t() or layer:matrix "lora_A"
        local b = is_embedding and layer:get "lora_embedding_B" or layer:matrix "lora_B"
        -- The file has one alpha: a layer's scaling is alpha / r.
        local alpha = layer:get "lora_scaling" * b:size(1)
        file_alpha = file_alpha or alpha
        b = convert.written(b:float(), not is_embedding and how or nil, c)
        add(name .. ".lora_a", a:float():contiguous())
        add(name .. ".lora_b", alpha == file_alpha and b or b * (alpha / file_alpha))
      end
    end
  end)
  if not file_alpha then fail "lora.save_gguf: there is no adapter in the tree" end
  local w = new_values(architecture)
  w.add("general.architecture", "string", architecture)
  w.add("general.type", "string", "adapter")
  w.add("adapter.type", "string", "lora")
  w.add("adapter.lora.alpha", "f32", file_alpha)
  write(path, w.list, tensors, function(writer)
    for _, matrix in ipairs(matrices) do writer:add(matrix) end
  end)
end

-- Returns a tensor of a file after a check of its sizes; -1 stands for any.
local function tensor_of(file, name, sizes)
  local shape = file:shape(name)
  for i, size in ipairs(sizes) do
    if #shape ~= #sizes or size ~= -1 and shape[i] ~= size then
      fail("%s: the tensor %s is [%s], expected [%s]", file.path, name, table.concat(shape, ", "),
        (table.concat(sizes, ", "):gsub("%-1", "r")))
    end
  end
  return file:tensor(name):float()
end

--- Adds the adapters of a file to params, a flat table of a model.
function adapter.load(path, model, params)
  local file = native.open_gguf(path)
  local metadata = file.metadata
  local architecture, row, c = facts_of(model)
  local function expect(key, value)
    if metadata[key] ~= value then
      fail("%s: %s is %s, expected %s", path, key, tostring(metadata[key]), value)
    end
  end
  expect("general.type", "adapter")
  expect("general.architecture", architecture)
  expect("adapter.type", "lora")
  local alpha = metadata["adapter.lora.alpha"]
  if type(alpha) ~= "number" then fail("%s: the number adapter.lora.alpha is missing", path) end
  local rest, n = {}, 0
  for _, name in ipairs(file:keys()) do rest[name] = true end
  local function parameter(matrix)
    return native.parameter(matrix.shape, { dtype = "float32" }):copy_(matrix)
  end
  for _, layer in ipairs(layers.of(params)) do
    local name, _, part = names.of(row, layer.name .. ".weight")
    local a_name, b_name = (name or "") .. ".lora_a", (name or "") .. ".lora_b"
    if name and (rest[a_name] or rest[b_name]) then
      if not (rest[a_name] and rest[b_name]) then
        fail("%s: %s has only one of lora_a and lora_b", path, name)
      end
      rest[a_name], rest[b_name], n = nil, nil, n + 1
      torch.no_grad(function()
        local is_embedding = layer:is_embedding()
        local n_in, n_out = layer:sizes(row.transposed[part])
        if is_embedding then n_in, n_out = n_out, n_in end
        local b = tensor_of(file, b_name, { n_out, -1 })
        local r = b:size(1)
        local a = tensor_of(file, a_name, is_embedding and { n_in, r } or { r, n_in })
        layer:set("lora_scaling", alpha / b:size(1))
        if is_embedding then
          layer:set("lora_embedding_A", parameter(a:t():contiguous()))
          layer:set("lora_embedding_B", parameter(b))
        else
          layer:set_matrix("lora_A", parameter(a))
          layer:set_matrix("lora_B", parameter(convert.read(b, row.convert[part], c)))
          if row.transposed[part] then layer:set("lora_fan_in_fan_out", true) end
        end
      end)
    end
  end
  local other = next(rest)
  if other or n == 0 then
    fail("%s: %s", path, other and "the model has no place for the tensor " .. other
      or "there is no adapter in the file")
  end
end

return adapter
