--- Writes models as GGUF files of llama.cpp, by the same rows as they are read.
local complete_config = require "redco.models.config"
local config = require "redco.models.gguf.config"
local convert = require "redco.models.gguf.convert"
local fail = require "redco.fail"
local native = require "redco.native"
local names = require "redco.models.gguf.names"
local new_values = require "redco.models.gguf.values"
local positions = require "redco.models.gguf.positions"
local rotary = require "redco.models.layers.rotary"
local rows = require "redco.models.gguf.architectures"
local types = require "redco.models.gguf.types"
local weights = require "redco.quant.weights"
local write = require "redco.models.gguf.write"

-- Patterns of settings that have no effect, or that check_settings compares in another way.
local without_effect = {}
for pattern in ([[drop _token_id$ ^initializer ^use_cache$ ^router_ ^output_router ^pretraining_tp$
  ^rope_theta$ ^rope_scaling$ ^rope_parameters$ ^rotary_ ^partial_rotary_factor$ ^original_max
  ^cache_implementation$ sliding_window ^layer_types$ ^max_window_layers$ ^summary_ ^is_decoder$
  ^head_dim$ ^n_inner$ ^ffn_hidden_size$ ^seq_length$ _fusion$ ^attention_softmax_in_fp32$
  ^skip_bias ^offset_alibi$ ^reorder_and_upcast ^no_rope_layer_interval$ ^num_ln_in_parallel_attn$
  ^mlp_only_layers$ ^hidden_act$ ^intermediate_size$]]):gmatch "%S+" do
  without_effect[#without_effect + 1] = pattern
end

local function has_effect(key)
  for _, pattern in ipairs(without_effect) do
    if key:find(pattern) then return false end
  end
  return true
end

local function are_equal(a, b)
  if type(a) == "number" and type(b) == "number" then
    return math.abs(a - b) <= 1e-6 * math.max(math.abs(a), math.abs(b))
  end
  if type(a) ~= "table" or type(b) ~= "table" then return (a or false) == (b or false) end
  for key, value in pairs(a) do
    if not are_equal(value, b[key]) then return false end
  end
  return #a == #b
end

-- The windows of the layers, 0 for none.
local function windows_of(c)
  local list = {}
  local window = c.use_sliding_window ~= false and c.sliding_window or 0
  for i = 1, c.num_hidden_layers do
    local is_whole = c.layer_types and c.layer_types[i] ~= "sliding_attention"
    list[i] = not is_whole and window < (c.max_position_embeddings or 0) and window or 0
  end
  return list
end

-- Raises an error if a file with these keys and tensors would open with other settings than the
-- model's.
local function check_settings(file, architecture, row, family, c)
  local given, used = config.read(file, architecture, rows[architecture])
  local own_family = require("redco.models.families." .. given.model_type)
  local read = names.settings(own_family, (complete_config(own_family, given, true)))
  local function refuse(key, theirs, own)
    fail("save_gguf: %s in GGUF has no %s = %s, only %s", family.model_type, key, tostring(theirs),
      tostring(own))
  end
  if used ~= row then refuse("model_type", c.model_type, used.model_type) end
  local activation = c.hidden_act or c.hidden_activation or c.activation
  local own_activation = read.hidden_act or read.hidden_activation or read.activation
  local aliases = { swish = "silu", gelu_fast = "gelu_pytorch_tanh" }
  if (aliases[activation] or activation) ~= own_activation then
    refuse("hidden_act", activation, own_activation)
  end
  for key in pairs(own_family.defaults) do
    if has_effect(key) and not are_equal(c[key], read[key]) then refuse(key, c[key], read[key]) end
  end
  for _, key in ipairs(own_family.optional or {}) do
    if has_effect(key) and not are_equal(c[key], read[key]) then refuse(key, c[key], read[key]) end
  end
  if not are_equal(windows_of(c), windows_of(read)) then
    refuse("sliding_window", c.sliding_window, "that of its architecture")
  end
  if row.rotary and not positions.are_same(c, read) then
    refuse("rope_scaling", c.rope_scaling and (c.rope_scaling.rope_type or c.rope_scaling.type)
      or "none", "that of its architecture")
  end
end

-- Returns the planned file, as check_settings reads it.
local function planned_file(path, metadata, tensors)
  local by_name = {}
  for _, tensor in ipairs(tensors) do by_name[tensor[1]] = tensor end
  local file = { path = path, metadata = metadata }
  function file.keys()
    local list = {}
    for name in pairs(by_name) do list[#list + 1] = name end
    return list
  end
  function file.shape(_, name) return by_name[name][3] end
  function file.tensor(_, name) return by_name[name][4] end
  return file
end

-- Returns the type of a tensor in a file that keeps the parameters' types.
local function own_type(params, tensor)
  local parameter = tensor.parameters[1]
  local type = params[parameter .. "_type"]
  if not type then
    for name, dtype in pairs(types.plain) do
      if params[parameter].dtype == dtype then return name end
    end
  end
  return type
end

-- Sets type and shape of the tensors.
local function set_types(list, params, row, c, o, facts)
  for _, tensor in ipairs(list) do
    local parameter = tensor.parameters[1]
    local shape = { unpack(weights.shape(params[parameter], params[parameter .. "_type"])) }
    tensor.is_transposed = row.transposed[tensor.part] and #shape == 2
    if tensor.is_transposed then shape[1], shape[2] = shape[2], shape[1] end
    tensor.shape = shape
    if tensor.is_stack then
      local n = c[row.n_experts]
      for i = 1, n do
        if not tensor.parameters[i] then
          fail("save_gguf: expert %d of %s is missing", i - 1, tensor.name)
        end
      end
      tensor.shape = { n, unpack(shape) }
    end
    if types.is_small(tensor.name, tensor.shape) then
      tensor.type = "f32"
    else
      tensor.type = o.type and types.of(o.type, tensor.name, tensor.shape, facts)
        or own_type(params, tensor)
    end
  end
end

-- Returns a part of a tensor as it is written.
local function part_of(params, parameter, tensor, how, c, importance)
  local weight, type = params[parameter], params[parameter .. "_type"]
  if type and type == tensor.type then return convert.written(weight, how, c) end
  local numbers = type and native.dequantize(weight, type) or weight
  if tensor.is_transposed then numbers = numbers:t():contiguous() end
  numbers = convert.written(numbers:float(), how, c)
  local dtype = types.plain[tensor.type]
  if not dtype then return native.quantize(numbers, tensor.type, importance) end
  local result = numbers:to(dtype)
  if tensor.type == "f16" and not result:isfinite():all():item() then
    fail("save_gguf: %s has numbers that float16 has not: give type = \"bf16\"", parameter)
  end
  return result
end

-- Returns the given tokenizer, or that of the model's folder.
local function tokenizer_of(model, given)
  if given ~= nil then return given end
  if not model.source then
    fail "save_gguf: the model is from no folder: give tokenizer = a redco.Tokenizer, or false"
  end
  local ok, made = pcall(native.read_tokenizer, model.source)
  if ok then return made end
  fail("save_gguf: %s; give tokenizer = a redco.Tokenizer, or false for none", made)
end

-- Returns the importance of a weight's inputs, or nil.
local function importance_of(importance, parameter)
  return importance and importance[(parameter:gsub("%.weight$", ""))]
end

--- Writes a model. o: type, nil for those of the parameters; tokenizer, false for none; importance;
--- name.
return function(path, model, params, o)
  if o.type and not types.numbers[o.type] then
    local known = {}
    for name in pairs(types.numbers) do known[#known + 1] = name end
    table.sort(known)
    fail("save_gguf: type is %s, expected one of %s", tostring(o.type), table.concat(known, ", "))
  end
  local tokenizer = tokenizer_of(model, o.tokenizer)
  local architecture, row, list = names.row_of(model, params)
  local c = names.settings(model.family, model.config)
  if row.settle then row.settle(c) end
  local facts = { architecture = architecture, n_layers = c.num_hidden_layers,
    n_experts = row.n_experts and c[row.n_experts] or 0, is_tied = true,
    is_70b = c.num_hidden_layers == 80, has_importance = o.importance ~= nil }
  for _, tensor in ipairs(list) do
    if tensor.name == "output.weight" then facts.is_tied = false end
  end
  set_types(list, params, row, c, o, facts)

  local w = new_values(architecture)
  w.add("general.architecture", "string", architecture)
  w.add("general.type", "string", "model")
  w.add("general.name", "string", o.name
    or (model.source or path):gsub("%.gguf$", ""):match "([^/]+)/*$")
  if o.type then w.add("general.file_type", "u32", types.numbers[o.type]) end
  w.add("general.quantization_version", "u32", 2)
  local tensors = config.write(w, row, c)
  local n_own = #tensors
  for _, tensor in ipairs(list) do
    tensors[#tensors + 1] = { tensor.name, tensor.type, tensor.shape }
  end
  check_settings(planned_file(path, w.by_key, tensors), architecture, row, model.family, c)
  if row.rotary then rotary.settings(c.model_type, c, rotary.size(c)) end
  if not tokenizer then w.add("tokenizer.ggml.model", "string", "no_vocab") end

  write(path, w.list, tensors, function(writer)
    for i = 1, n_own do writer:add(tensors[i][4]) end
    for _, tensor in ipairs(list) do
      local how = row.convert[tensor.part]
      for _, parameter in ipairs(tensor.parameters) do
        writer:add(part_of(params, parameter, tensor, how, c,
          importance_of(o.importance, parameter)))
      end
    end
  end, tokenizer or nil, c.vocab_size)
end
