--- Low-rank adapters (Hu et al., 2021): beside the weight of a layer, which stays as it is, lie two
--- small matrices that are trained, and the layer adds scaling * B A x to what it puts out.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local folder = require "redco.lora.folder"
local layers = require "redco.lora.layers"
local native = require "redco.native"
local nn_init = require "redco.nn.initializers"
local optim = require "redco.optim"
local registry = require "redco.registry"
local torch = require "redco.torch"
local tree = require "redco.tree"

local lora = {}

local function copy_of(params)
  return tree.map(function(leaf) return leaf end, params)
end

local function ends_with(name, suffix)
  return name == suffix or name:sub(-#suffix - 1) == "." .. suffix
end

-- A function that tells the layers meant by what peft calls target_modules.
local function target(modules)
  if type(modules) == "string" then
    return function(name) return name:find("^" .. modules .. "$") ~= nil end
  end
  if type(modules) ~= "table" or #modules == 0 then
    fail("lora.add: target_modules: expected the last parts of layers' names, {\"q_proj\"}, or a "
      .. "pattern of whole names, got %s", type(modules) == "table" and "{}" or type(modules))
  end
  return function(name)
    for _, module in ipairs(modules) do
      if ends_with(name, module) then return true end
    end
    return false
  end
end

-- The last parts of the names of all matrices: what target_modules may be.
local function names_of(all)
  local seen, names = {}, {}
  for _, layer in ipairs(all) do
    local last = layer.name:match "[^.]*$"
    if not seen[last] and layer:get("weight"):dim() == 2 then names[#names + 1] = last end
    seen[last] = true
  end
  return table.concat(names, ", ")
end

local function check_found(chosen, modules, all)
  if type(modules) == "string" then
    if #chosen == 0 then
      fail("lora.add: no layer's name matches the pattern '%s'; the layers end in %s", modules,
        names_of(all))
    end
    return
  end
  for _, module in ipairs(modules) do
    local is_found = false
    for _, layer in ipairs(chosen) do is_found = is_found or ends_with(layer.name, module) end
    if not is_found then
      fail("lora.add: no layer's name ends in '%s'; those here end in %s", tostring(module),
        names_of(all))
    end
  end
end

-- The numbers of inputs and outputs of a layer that an adapter can lie beside.
local function checked_sizes(layer, fan_in_fan_out)
  local weight, bias = layer:get "weight", layer:get "bias"
  local n_in, n_out = layer:sizes(fan_in_fan_out)
  if bias and bias:numel() ~= n_out then
    fail("lora.add: %s has a weight [%s] and a bias [%d]; is the weight [in, out]? Say "
      .. "fan_in_fan_out = %s", layer.name, table.concat(weight.shape, ", "), bias:numel(),
      tostring(not fan_in_fan_out))
  end
  return n_in, n_out
end

local add_options = arguments("lora.add",
  { r = 8, lora_alpha = 8, lora_dropout = 0, use_rslora = false },
  { "target_modules", "fan_in_fan_out", "generator" })
lora.add = registry.define("redco.lora.add", [[
add(params, {target_modules, r = 8, lora_alpha = 8, lora_dropout = 0, use_rslora = false, fan_in_fan_out, generator}) -> params
The tree with adapters of rank r beside the weights of the layers whose names end in one of
`target_modules`, {"q_proj", "v_proj"}, or match it whole, if it is a pattern of Lua's. The other
tensors are those of `params`. Names are peft's: `X.lora_A.weight` [r, in], uniform, and
`X.lora_B.weight` [out, r], zeros, beside `X.weight`; the layer adds lora_alpha / r (with use_rslora
lora_alpha / sqrt(r)) * B A dropout(x). Layers are those of the models and `nn.linear`, in any tree.
`fan_in_fan_out`: weights are [in, out]; left out, GPT-2's are. Train them with
`redco.lora.freeze_base(optimizer)`.]], function(params, options)
  local o = add_options(options)
  if o.r < 1 or o.r % 1 ~= 0 then fail("lora.add: r = %s is no rank", tostring(o.r)) end
  if o.lora_dropout < 0 or o.lora_dropout >= 1 then
    fail("lora.add: lora_dropout = %s is not in [0, 1)", tostring(o.lora_dropout))
  end
  local is_target, result = target(o.target_modules), copy_of(params)
  local all, chosen = layers.of(result), {}
  for _, layer in ipairs(all) do
    if is_target(layer.name) then chosen[#chosen + 1] = layer end
  end
  check_found(chosen, o.target_modules, all)
  for _, layer in ipairs(chosen) do
    if layer:matrix "lora_A" then fail("lora.add: %s has an adapter already", layer.name) end
    local fan_in_fan_out = o.fan_in_fan_out
    if fan_in_fan_out == nil then fan_in_fan_out = layer:is_conv1d() end
    local n_in, n_out = checked_sizes(layer, fan_in_fan_out)
    -- Small changes are lost in 16 bits.
    local dtype = layer:get("weight").dtype
    if dtype == "bfloat16" or dtype == "float16" then dtype = "float32" end
    layer:set_matrix("lora_A", nn_init.kaiming_uniform_(
      native.parameter({ o.r, n_in }, { dtype = dtype }),
      { a = math.sqrt(5), generator = o.generator }))
    layer:set_matrix("lora_B", nn_init.zeros_(native.parameter({ n_out, o.r }, { dtype = dtype })))
    layer:set("lora_scaling", o.lora_alpha / (o.use_rslora and math.sqrt(o.r) or o.r))
    if o.lora_dropout > 0 then layer:set("lora_dropout", o.lora_dropout) end
    if fan_in_fan_out then layer:set("lora_fan_in_fan_out", true) end
  end
  return result
end)

lora.is_frozen = registry.define("redco.lora.is_frozen", [[
is_frozen(name) -> boolean
Whether a parameter, by its dotted name, is none of an adapter's: for `redco.optim.freeze`.]],
function(name)
  return not layers.is_adapter(name)
end)

lora.freeze_base = registry.define("redco.lora.freeze_base", [[
freeze_base(optimizer) -> Optimizer
The optimizer for adapters alone: all other parameters stay as they are and cost no gradient and no
optimizer state.]], function(optimizer)
  return optim.freeze(optimizer, lora.is_frozen)
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

lora.merge = registry.define("redco.lora.merge", [[
merge(params) -> params
The tree without adapters: what they add is in the weights, W + scaling B A, so that the model does the
same without them and `model.save_pretrained(dir, {params = ...})` writes it. Other tensors are those
of `params`.]], function(params)
  local result, n_merged = without_adapters(params), 0
  local merged = {}
  for _, layer in ipairs(layers.of(result)) do merged[layer.name] = layer end
  torch.no_grad(function()
    for _, layer in ipairs(layers.of(params)) do
      local a, b = layer:matrix "lora_A", layer:matrix "lora_B"
      if a then
        local change = b:matmul(a):mul(layer:get "lora_scaling")
        if layer:get "lora_fan_in_fan_out" then change = change:t() end
        local weight = layer:get "weight"
        merged[layer.name]:set("weight", weight:to(a.dtype):add(change):to(weight.dtype))
        n_merged = n_merged + 1
      end
    end
  end)
  if n_merged == 0 then fail "lora.merge: there is no adapter in the tree" end
  return result
end)

local save_options = arguments("lora.save_pretrained", {},
  { "base_model_name_or_path", "task_type" })
lora.save_pretrained = registry.define("redco.lora.save_pretrained", [[
save_pretrained(dir, params, {base_model_name_or_path, task_type})
Writes the adapters alone as peft does: adapter_config.json and adapter_model.safetensors. Every
process must call it.]], function(dir, params, options)
  folder.save(dir, layers.of(params), save_options(options))
end)

lora.from_pretrained = registry.define("redco.lora.from_pretrained", [[
from_pretrained(dir, params) -> params
The tree with the adapters of peft's folder beside its weights. What the folder asks for and is not
supported is refused by its name.]], function(dir, params)
  local result = copy_of(params)
  folder.load(dir, layers.of(result))
  return result
end)

return registry.define("redco.lora", [[
redco.lora
Low-rank adapters for fine-tuning: Hu et al., 2021. Beside the weight of a layer, which stays as it
is, lie two small matrices that are trained, and the layer adds scaling * B A x to what it puts
out.]], lora)
