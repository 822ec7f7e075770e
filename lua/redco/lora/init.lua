--- Low-rank adapters (Hu et al., 2021). The weight of a layer stays fixed; two small matrices A and
--- B are trained, and the layer adds scaling * B A x to its output.
local adapter = require "redco.lora.adapter"
local arguments = require "redco.arguments"
local choose = require "redco.lora.choose"
local fail = require "redco.fail"
local folder = require "redco.lora.folder"
local hub = require "redco.hub"
local initial = require "redco.lora.initial"
local layers = require "redco.lora.layers"
local native = require "redco.native"
local nn_init = require "redco.nn.initializers"
local optim = require "redco.optim"
local registry = require "redco.registry"
local requantize = require "redco.lora.requantize"
local saved = require "redco.lora.saved"
local stacks = require "redco.lora.stacks"
local strict = require "redco.strict"
local tied = require "redco.lora.tied"
local torch = require "redco.torch"
local tree = require "redco.tree"
local weights = require "redco.quant.weights"

local lora = {}

local function shown(value)
  return type(value) == "table" and "a table" or tostring(value)
end

local function check_number(name, value, expected, is_valid)
  if type(value) ~= "number" or is_valid and not is_valid(value) then
    fail("lora.add: %s: expected %s, got %s", name, expected, shown(value))
  end
end

local function check_tree(where, params)
  if type(params) == "table" and not (getmetatable(params) or {}).__call then return end
  fail("%s: expected the parameters of a model, model.params, got %s", where,
    type(params) == "table" and "the model" or shown(params))
end

local function copy_of(params)
  return tree.map(function(leaf) return leaf end, params)
end

-- Returns the numbers of inputs and outputs of a layer. Raises an error if it cannot have an
-- adapter.
local function checked_sizes(layer, fan_in_fan_out)
  local bias = layer:get "bias"
  local n_in, n_out = layer:sizes(fan_in_fan_out)
  if bias and bias:numel() ~= n_out then
    fail("lora.add: %s has a weight [%s] and a bias [%d], which do not fit; try "
      .. "fan_in_fan_out = %s", layer.name, table.concat(layer:shape(), ", "), bias:numel(),
      not fan_in_fan_out)
  end
  return n_in, n_out
end

-- Checks a list of names of modules.
local function check_modules(modules)
  local wrong = modules ~= nil and type(modules) ~= "table" and type(modules)
  for _, module in ipairs(not wrong and modules or {}) do
    if type(module) ~= "string" then wrong = "a " .. type(module) .. " in the list" end
  end
  if wrong then
    fail("lora.add: modules_to_save: expected the last parts of modules' names, {\"lm_head\"}, got "
      .. "%s", wrong)
  end
end

-- Gives a model whose output layer is its embedding a separate output layer if the options name it.
local function untie(params, o)
  local is_saved, is_target = false, false
  for _, module in ipairs(o.modules_to_save or {}) do is_saved = is_saved or module == "lm_head" end
  for _, module in ipairs(type(o.target_modules) == "table" and o.target_modules or {}) do
    is_target = is_target or module == "lm_head"
  end
  local weight = (is_saved or is_target) and tied.add_head(params)
  if weight and is_saved then params[weight] = params[weight]:clone() end
end

-- Returns the layers and stacks that get adapters. `whole` are the parameters that are trained
-- whole.
local function chosen_layers(params, o, whole)
  local modules, parameters = o.target_modules, o.target_parameters
  local is_empty = type(modules) == "table" and #modules == 0
  if parameters ~= nil and is_empty then modules = nil end
  local chosen = {}
  if modules ~= nil or parameters == nil then
    chosen = choose.modules("lora.add", params, modules, whole)
  end
  if parameters == nil then return chosen end
  for _, layer in ipairs(choose.parameters("lora.add", params, parameters, whole)) do
    chosen[#chosen + 1] = layer
  end
  return chosen
end

-- Gives a layer an adapter.
local function add_to(layer, o)
  local fan_in_fan_out = o.fan_in_fan_out
  if fan_in_fan_out == nil then fan_in_fan_out = layer:is_conv1d() end
  local is_embedding = layer:is_embedding()
  local n_in, n_out = checked_sizes(layer, fan_in_fan_out or is_embedding)
  -- float32 at least: 16 bits lose small updates.
  local dtype = layer:get("weight").dtype
  if dtype ~= "float64" then dtype = "float32" end
  local a = native.parameter({ o.r, n_in }, { dtype = dtype })
  local b = native.parameter({ n_out, o.r }, { dtype = dtype })
  local scaling = o.lora_alpha / (o.use_rslora and math.sqrt(o.r) or o.r)
  layer:set("lora_scaling", scaling)
  if is_embedding then
    layer:set("lora_embedding_A", nn_init.zeros_(a))
    layer:set("lora_embedding_B", nn_init.normal_(b, { generator = o.generator }))
  else
    layer:set_matrix("lora_A", a)
    layer:set_matrix("lora_B", b)
    if o.lora_dropout > 0 then layer:set("lora_dropout", o.lora_dropout) end
    if fan_in_fan_out then layer:set("lora_fan_in_fan_out", true) end
    initial.fill("lora.add", layer, a, b, scaling, o)
  end
  if o.use_dora then initial.add_magnitude(layer, a, b, fan_in_fan_out or is_embedding) end
end

local add_options = arguments("lora.add",
  { r = 8, lora_alpha = 8, lora_dropout = 0, use_rslora = false, use_dora = false,
    init_lora_weights = true },
  { "target_modules", "target_parameters", "modules_to_save", "task_type", "fan_in_fan_out",
    "loftq_config", "generator" })
lora.add = registry.define("redco.lora.add", [[
add(params, {target_modules = nil, target_parameters = nil, r = 8, lora_alpha = 8, lora_dropout = 0, use_rslora = false, use_dora = false, init_lora_weights = true,
  loftq_config: table = nil, modules_to_save = nil, task_type = nil, fan_in_fan_out = nil, generator = nil}) -> params
Returns the tree with adapters of rank r added to the selected layers. The other tensors are those
of `params`. `target_modules` is a list of the last parts of layer names, {"q_proj", "v_proj"}, or a
Lua pattern of whole names. The layers are those of the models and `nn.linear`, in any tree. Train
the adapters with `redco.lora.freeze_base(optimizer)`.

Some modules are trained and saved whole, without adapters: those whose names end in one of
`modules_to_save`, {"lm_head", "embed_tokens"}, and the heads of a task if `task_type` is "SEQ_CLS",
"TOKEN_CLS" or "QUESTION_ANS". Without both options they are the heads (`score`, `classifier`,
`qa_outputs`, ...) and whatever the folder of the base lacks. If the model ties its output layer to
the embedding, "lm_head" unties it: the output layer gets a copy of the weight. "embed_tokens" alone
keeps the two tied.

Names are peft's: `X.lora_A.weight` [r, in], uniform, and `X.lora_B.weight` [out, r], zeros, next to
`X.weight`. The table of a model's tokens, "embed_tokens" or "wte", gets `X.lora_embedding_A` [r, n],
zeros, and `X.lora_embedding_B` [size, r], normal, without dropout; an output layer that is tied to it
stays as it is. A layer adds scaling * B A dropout(x) to its output, with scaling = lora_alpha / r, or
lora_alpha / sqrt(r) if use_rslora. `fan_in_fan_out` says that weights are [in, out]; by default
only those of GPT-2's layers are.

With `use_dora` (arXiv 2402.09353) `X.lora_magnitude_vector` [out] is trained, too: the length of
each row of W + scaling B A. `init_lora_weights` is true, "gaussian" (A is normal), or moves a part
of each weight into A and B, so that the base becomes what is left of it: "pissa" (arXiv 2404.02948)
the part of the largest singular values, "olora" (arXiv 2406.01775) that of a QR decomposition,
"loftq" (arXiv 2310.08659) what the weight loses when it is quantized to nf4. `loftq_config` =
{loftq_iter = 1} has the number of LoftQ's iterations. A quantized base is rounded again.

`target_parameters` is a list of the last parts of parameters' names, also of those that have the
matrices of all experts of a mixture, [n, rows, columns]: {"experts.gate_up_proj",
"experts.down_proj"}. Such an `X` gets `X.lora_A.weight` [n, r, columns] and `X.lora_B.weight` [n, rows,
r], a pair for each expert, without dropout, DoRA, and values that move a part of the weight.]],
function(params, options)
  local o = add_options(options)
  check_number("r", o.r, "a positive integer", function(r) return r >= 1 and r % 1 == 0 end)
  check_number("lora_alpha", o.lora_alpha, "a number")
  check_number("lora_dropout", o.lora_dropout, "a number in [0, 1)",
    function(p) return p >= 0 and p < 1 end)
  check_tree("lora.add", params)
  check_modules(o.modules_to_save)
  initial.check("lora.add", o.init_lora_weights, o.loftq_config)
  saved.check_task_type("lora.add", o.task_type)
  local result = copy_of(params)
  untie(result, o)
  local whole = saved.choose(result, o)
  for _, layer in ipairs(chosen_layers(result, o, whole)) do
    if layer:has_adapter() then fail("lora.add: %s has an adapter already", layer.name) end
    local is_stack = o.target_parameters ~= nil and layer:is_stack()
    if is_stack then stacks.add(layer, o) else add_to(layer, o) end
  end
  saved.mark(result, whole)
  return result
end)

lora.is_frozen = registry.define("redco.lora.is_frozen", [[
is_frozen(name, parameter = nil) -> boolean
Returns whether the parameter of this dotted name neither belongs to an adapter nor is saved whole
(`redco.lora.add` says which are), for `redco.optim.freeze`. It knows the trees that `add` and
`from_pretrained` have made in this program.]],
function(name, parameter)
  return saved.is_frozen(name, parameter, {})
end)

lora.freeze_base = registry.define("redco.lora.freeze_base", [[
freeze_base(optimizer, params = nil) -> Optimizer
Returns an optimizer that trains only the adapters, and the modules that are saved whole with them.
All other parameters stay fixed and need no gradient and no optimizer state. `params` is needed if
several trees of the program save different modules whole and the parameters are those of a
checkpoint.]], function(optimizer, params)
  local decided = {}
  for name in pairs(params and saved.parameters(params) or {}) do decided[name] = false end
  for name in pairs(params and saved.of(params) or {}) do decided[name] = true end
  return optim.freeze(optimizer, function(name, parameter)
    return saved.is_frozen(name, parameter, decided)
  end)
end)

local function without_adapters(node)
  local rest = {}
  for key, value in pairs(node) do
    if not layers.is_adapter(tostring(key)) then
      rest[key] = type(value) == "table" and without_adapters(value) or value
    end
  end
  return rest
end

local merge_options = arguments("lora.merge", { quantize = false })
lora.merge = registry.define("redco.lora.merge", [[
merge(params, {quantize = false}) -> params, table
Returns the tree without adapters: their changes are added to the weights, W + scaling B A, whose
rows get the lengths that DoRA has trained. The model computes the same, and
`model.save_pretrained(dir, {params = ...})` writes it. Other tensors are those of `params`. An
embedding that is the output layer, too, and has an adapter is copied: the output layer keeps it as
it was.

Quantized weights that had an adapter become float32, so that nothing is lost. With `quantize` they
are rounded to their type again. A line on standard error then says what this loses, and the second
result has it for each layer, {[name] = number}: the norm of the rounding's change, relative to that
of the adapter's.]], function(params, options)
  local o = merge_options(options)
  local result, n_merged = without_adapters(params), 0
  local merged = {}
  for _, layer in ipairs(layers.with_stacks(result)) do merged[layer.name] = layer end
  if tied.has_adapter(params) then tied.add_head(result) end
  torch.no_grad(function()
    for _, layer in ipairs(layers.with_stacks(params)) do
      local is_embedding = layer:get "lora_embedding_A" ~= nil
      local a = is_embedding and layer:get "lora_embedding_A" or layer:matrix "lora_A"
      local b = is_embedding and layer:get "lora_embedding_B" or layer:matrix "lora_B"
      if a then
        local is_transposed = is_embedding or layer:get "lora_fan_in_fan_out"
        local sum = adapter.sum(layer.node, layer.stem, a, b, is_transposed, layer.key)
        local own, dtype = merged[layer.name], layer:get("weight").dtype
        local magnitude = layer:get "lora_magnitude_vector"
        if magnitude then
          local factor = magnitude / adapter.norms(sum, is_transposed)
          sum = sum * (is_transposed and factor or factor:unsqueeze(1))
        end
        own:set("weight", sum:to(layer:get "weight_type" and "float32" or dtype))
        for _, key in ipairs(weights.entries) do own:set(key, nil) end
        n_merged = n_merged + 1
      end
    end
  end)
  if n_merged == 0 then fail "lora.merge: there is no adapter in the tree" end
  if o.quantize then return result, torch.no_grad(requantize, params, result) end
  return result
end)

lora.base = registry.define("redco.lora.base", [[
base(params) -> params
Returns the tree without adapters, with the other tensors of `params`: the model as it was before
`redco.lora.add`, such as the reference model of DPO. A loss_fn may call it at each step, since it
computes nothing. A tree with modules that are trained and saved whole no longer has their first
values, and raises an error.]], function(params)
  check_tree("lora.base", params)
  local has_adapter = false
  local all = layers.with_stacks(params)
  for _, layer in ipairs(all) do has_adapter = has_adapter or layer:has_adapter() end
  if not has_adapter then fail "lora.base: there is no adapter in the tree" end
  for _, layer in ipairs(all) do
    if layer:get "lora_init" then
      fail("lora.base: init_lora_weights = \"%s\" has moved a part of %s into the adapter; keep a "
        .. "copy of the model as the reference", layer:get "lora_init", layer.name)
    end
  end
  local whole = next((saved.of(params)))
  if whole then
    fail("lora.base: %s is trained whole, so the tree has lost its first value; keep a copy of the "
      .. "model as the reference", whole)
  end
  return without_adapters(params)
end)

local save_options = arguments("lora.save_pretrained", {},
  { "base_model_name_or_path", "task_type" })
lora.save_pretrained = registry.define("redco.lora.save_pretrained", [[
save_pretrained(dir, params, {base_model_name_or_path = nil, task_type = nil})
Writes the adapters, and what must be whole beside them, in peft's format: adapter_config.json and
adapter_model.safetensors. Whole are the modules that `redco.lora.add` chose, every other parameter
that a Trainer trained, and those that the files of the base do not have as they are. Every process must call
it.]], function(dir, params, options)
  local o = save_options(options)
  saved.check_task_type("lora.save_pretrained", o.task_type)
  folder.save(dir, params, o)
end)

lora.from_pretrained = registry.define("redco.lora.from_pretrained", [[
from_pretrained(dir, params) -> params
Returns the tree with the adapters of a peft folder, and with the modules that the folder has whole
in place of those of `params`: open the base of a classifier with its task. A setting of the folder
that is not supported raises an error that names it. `dir` can be a name of the Hub, as in
`redco.models.from_pretrained`.]], function(dir, params)
  dir = hub.path("lora.from_pretrained", dir, "adapters")
  local result = copy_of(params)
  folder.load(dir, result)
  return result
end)

lora.save_gguf = registry.define("redco.lora.save_gguf", [[
save_gguf(path, model, params)
Writes the adapters of `params`, which are on the model's parameters, as a file of llama.cpp, which
its option --lora takes. What is trained whole, experts and DoRA have no place there, and raise an
error. Every process must call it.]], function(path, model, params)
  require("redco.models.gguf.adapter").save(path, model, params)
end)

lora.from_gguf = registry.define("redco.lora.from_gguf", [[
from_gguf(path, model) -> params
Returns the model's parameters with the adapters of a file of llama.cpp.]], function(path, model)
  local result = copy_of(model.params)
  require("redco.models.gguf.adapter").load(path, model, result)
  return result
end)

return registry.define("redco.lora", [[
redco.lora
Low-rank adapters for fine-tuning: Hu et al., 2021. The weight of a layer stays fixed; two small
matrices A and B are trained, and the layer adds scaling * B A x to its output.]],
strict("redco.lora", lora))
