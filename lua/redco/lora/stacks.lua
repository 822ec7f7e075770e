--- Adapters of stacks, the parameters [n, rows, columns] of experts, as peft's target_parameters
--- have them: their names and their matrices in adapter folders.
local fail = require "redco.fail"
local native = require "redco.native"
local nn_init = require "redco.nn.initializers"
local torch = require "redco.torch"

local stacks = {}

-- peft has no place for these options beside parameters.
local refused = { "use_dora", "fan_in_fan_out" }

--- Raises an error, which begins with `where`, for an option that adapters of stacks cannot have.
function stacks.check(where, layer, options)
  for _, name in ipairs(refused) do
    if options[name] then
      fail("%s: %s is a parameter of experts, whose adapters cannot have %s", where,
        layer.parameter, name)
    end
  end
  if (options.lora_dropout or 0) > 0 then
    fail("%s: %s is a parameter of experts, whose adapters cannot have lora_dropout = %g, only 0",
      where, layer.parameter, options.lora_dropout)
  end
  local init = options.init_lora_weights
  if where == "lora.add" and init ~= true and init ~= "gaussian" then
    fail("%s: %s is a parameter of experts, whose adapters can have init_lora_weights = true or "
      .. "\"gaussian\", got \"%s\"", where, layer.parameter, tostring(init))
  end
end

--- Gives a stack an adapter of rank r for each matrix.
function stacks.add(layer, o)
  stacks.check("lora.add", layer, o)
  local n, rows, columns = unpack(layer:shape())
  local dtype = layer:get("weight").dtype == "float64" and "float64" or "float32"
  local a = native.parameter({ n, o.r, columns }, { dtype = dtype })
  local b = native.parameter({ n, rows, o.r }, { dtype = dtype })
  torch.no_grad(function()
    local flat = a:view { n * o.r, columns }
    if o.init_lora_weights == "gaussian" then
      nn_init.normal_(flat, { std = 1 / o.r, generator = o.generator })
    else
      nn_init.kaiming_uniform_(flat, { a = math.sqrt(5), generator = o.generator })
    end
    nn_init.zeros_(b)
  end)
  layer:set("lora_scaling", o.lora_alpha / (o.use_rslora and math.sqrt(o.r) or o.r))
  layer:set_matrix("lora_A", a)
  layer:set_matrix("lora_B", b)
end

--- Returns whether folders have the adapter with rows and columns exchanged: peft takes the rows of
--- gpt-oss' parameters, which have biases, for inputs, and the columns of all others.
local function is_exchanged(layer) return layer.node[layer.key .. "_bias"] ~= nil end

--- Returns lora_A [n r, columns] and lora_B [rows, n r] for a folder. The rows of an expert are
--- neighbours in lora_A, and its columns are n apart in lora_B.
function stacks.written(layer)
  local a, b = layer:matrix "lora_A", layer:matrix "lora_B"
  if is_exchanged(layer) then a, b = b:transpose(1, 2), a:transpose(1, 2) end
  return a:flatten(0, 1):contiguous(), b:permute { 1, 2, 0 }:flatten(1, 2):contiguous()
end

-- Returns the module of a parameter and its place in the order of registration: gate_up_proj comes
-- before down_proj.
local function place_of(layer)
  local module, last = layer.parameter:match "^(.*)%.([^.]*)$"
  return module, last == "down_proj" and 2 or 1
end

--- Returns the stacks' names in folders, {[layer] = name}, of those layers of a list that
--- `is_chosen(layer)`. peft wraps the module once for each of its parameters, the first innermost.
function stacks.names(all, is_chosen)
  local modules, names = {}, {}
  for _, layer in ipairs(all) do
    if layer:is_stack() and is_chosen(layer) then
      local module, order = place_of(layer)
      modules[module] = modules[module] or {}
      table.insert(modules[module], { order = order, layer = layer })
    end
  end
  for module, parameters in pairs(modules) do
    table.sort(parameters, function(a, b) return a.order > b.order end)
    for depth, parameter in ipairs(parameters) do
      names[parameter.layer] = module .. (".base_layer"):rep(depth - 1)
    end
  end
  return names
end

--- Returns the stacks' names in a folder with these target_parameters.
function stacks.names_of_targets(all, target_parameters)
  return stacks.names(all, function(layer)
    for _, target in ipairs(target_parameters or {}) do
      if layer.parameter == target or layer.parameter:sub(-#target - 1) == "." .. target then
        return true
      end
    end
    return false
  end)
end

-- Returns whether the matrices fit as they are, and with rows and columns exchanged.
local function fits(layer, a, b)
  local _, rows, columns = unpack(layer:shape())
  return a[2] == columns and b[1] == rows, a[2] == rows and b[1] == columns
end

--- Returns a function of a layer that says whether the file has its matrices exchanged. Versions of
--- peft and transformers differ; where a weight is square, the other weights of the file say it.
--- `found` are the file's names, {[layer] = {lora_A, lora_B}}.
function stacks.exchanged(weights, found)
  local all
  for layer, keys in pairs(found) do
    if keys.lora_A and keys.lora_B then
      local as_is, exchanged = fits(layer, weights:shape(keys.lora_A), weights:shape(keys.lora_B))
      if as_is ~= exchanged then all = exchanged end
    end
  end
  return function(layer)
    if all == nil then return is_exchanged(layer) end
    return all
  end
end

--- Returns lora_A [n, r, columns] and lora_B [n, rows, r] of the matrices of a folder.
function stacks.read(path, layer, a, b, r, are_exchanged)
  local n, rows, columns = unpack(layer:shape())
  if are_exchanged then rows, columns = columns, rows end
  local sizes_a, sizes_b = a.shape, b.shape
  local do_fit = #sizes_a == 2 and #sizes_b == 2 and sizes_a[1] == n * r and sizes_b[2] == n * r
    and sizes_a[2] == columns and sizes_b[1] == rows
  if not do_fit then
    fail("%s: %s has lora_A [%s] and lora_B [%s], expected [%d, %d] and [%d, %d] for %d experts of "
      .. "rank %d", path, layer.parameter, table.concat(sizes_a, ", "),
      table.concat(sizes_b, ", "), n * r, columns, rows, n * r, n, r)
  end
  a, b = a:view { n, r, columns }, b:view { rows, r, n }:permute { 2, 0, 1 }
  if are_exchanged then a, b = b:transpose(1, 2), a:transpose(1, 2) end
  return a:contiguous(), b:contiguous()
end

return stacks
