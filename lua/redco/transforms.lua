--- Function transformations: gradients over trees, and vectorisation.
local functorch = require "redco.functorch"
local registry = require "redco.registry"
local torch = require "redco.torch"
local tree = require "redco.tree"

local transforms = {}

local function is_differentiable(leaf)
  return torch.is_tensor(leaf) and (leaf:is_floating_point() or leaf:is_complex())
end

local function tensor_leaves(t)
  local found = {}
  for _, leaf in ipairs(tree.leaves(t)) do
    if is_differentiable(leaf) then found[#found + 1] = leaf end
  end
  return found
end

--- The tree with the differentiable leaves replaced, in order.
local function with_leaves(t, leaves)
  local next_leaf = 0
  return tree.map(function(leaf)
    if not is_differentiable(leaf) then return leaf end
    next_leaf = next_leaf + 1
    return leaves[next_leaf]
  end, t)
end

local function map_tensors(f, t)
  return tree.map(function(leaf) return torch.is_tensor(leaf) and f(leaf) or leaf end, t)
end

local function check_loss(loss)
  if not torch.is_tensor(loss) or loss:numel() ~= 1 then
    local given = torch.is_tensor(loss) and ("a Tensor [%s]"):format(table.concat(loss.shape, ", "))
      or type(loss)
    error("redco.grad: the function must return a tensor of one element, it returned " .. given, 3)
  end
end

--- Gradients by LibTorch's recorder: for functions outside any transformation.
local function recorded(f, create_graph, params, ...)
  local needs_graph = create_graph
  local inputs = {}
  for i, leaf in ipairs(tensor_leaves(params)) do
    -- A new node for each leaf: the gradient counts what goes through the argument only, and an
    -- outer gradient still flows to where the leaf came from.
    if leaf.requires_grad then
      needs_graph = needs_graph ~= false
      inputs[i] = leaf:view_as(leaf)
    else
      inputs[i] = leaf:detach():requires_grad_()
    end
  end
  local results = { torch.enable_grad(f, with_leaves(params, inputs), ...) }
  check_loss(results[1])
  local gradients = torch.autograd.grad(results[1], inputs,
    { create_graph = needs_graph or false, allow_unused = true })
  for i, gradient in ipairs(gradients) do
    gradients[i] = gradient or torch.zeros_like(inputs[i])
  end
  if not needs_graph then
    results = tree.map(function(leaf) return torch.is_tensor(leaf) and leaf:detach() or leaf end, results)
  end
  return gradients, results
end

--- Gradients on a level of functorch: inside vmap, where the recorder does not reach.
local function on_level(f, params, ...)
  local args = { n = select("#", ...), ... }
  return functorch.with_grad(function(level)
    local inputs = {}
    for i, leaf in ipairs(tensor_leaves(params)) do
      inputs[i] = functorch.wrap_grad(leaf, level):requires_grad_()
    end
    local results = { f(with_leaves(params, inputs), unpack(args, 1, args.n)) }
    check_loss(results[1])
    local gradients = torch.autograd.grad(results[1], inputs,
      { create_graph = true, allow_unused = true })
    for i, gradient in ipairs(gradients) do
      gradients[i] = functorch.unwrap_grad(gradient or torch.zeros_like(inputs[i]), level)
    end
    return gradients, map_tensors(function(leaf) return functorch.unwrap_grad(leaf, level) end, results)
  end)
end

local function check_options(name, options)
  for key in pairs(options or {}) do
    if key ~= "create_graph" then
      error(("%s: the only option is create_graph, got %s"):format(name, tostring(key)), 3)
    end
  end
  return options or {}
end

transforms.value_and_grad = registry.define("redco.value_and_grad", [[
value_and_grad(f, {create_graph}) -> function(params, ...) -> value, gradients, ...
The function that gives f's value and its gradients for the tensors of its first argument, a tree;
f returns a tensor of one element, and may return more: that follows the gradients. The gradients
are a tree like `params`; a tensor that took no part gets zeros, leaves that are no floating-point
tensors are kept. They can be differentiated again with `create_graph`, which is on by itself where
`params` already require gradients.]], function(f, options)
  local create_graph = check_options("redco.value_and_grad", options).create_graph
  return function(params, ...)
    local gradients, results
    if functorch.in_transform() then
      gradients, results = on_level(f, params, ...)
    else
      gradients, results = recorded(f, create_graph, params, ...)
    end
    return results[1], with_leaves(params, gradients), unpack(results, 2, table.maxn(results))
  end
end)

transforms.grad = registry.define("redco.grad", [[
grad(f, {create_graph}) -> function(params, ...) -> gradients
Like `value_and_grad`, without the value: `redco.grad(redco.grad(f))` is a second derivative.]],
  function(f, options)
    local both = transforms.value_and_grad(f, check_options("redco.grad", options))
    return function(...)
      local _, gradients = both(...)
      return gradients
    end
  end)

local function batch_size_of(args, in_dims)
  local size
  for i = 1, args.n do
    local dim = in_dims(i)
    if dim then
      for _, leaf in ipairs(tree.leaves(args[i])) do
        if torch.is_tensor(leaf) then
          local n = leaf:size(dim)
          if size and n ~= size then
            error(("redco.vmap: argument %d has %d entries in dimension %d, others have %d")
              :format(i, n, dim, size), 3)
          end
          size = n
        end
      end
    end
  end
  return size or error("redco.vmap: no argument has a tensor to map over", 3)
end

transforms.vmap = registry.define("redco.vmap", [[
vmap(f, {in_dims = 0, out_dims = 0, randomness = "error"}) -> function
The function that applies f to every entry of its arguments at once: f sees tensors without the
mapped dimension. Arguments and results are trees. `in_dims` is the dimension to map over, for all
arguments or a list with one for each, false for an argument that all entries share. `randomness`:
"error", "different" numbers for each entry, or the "same". `redco.vmap(redco.grad(f),
{in_dims = {false, 0}})` gives per-example gradients.]], function(f, options)
  options = options or {}
  for key in pairs(options) do
    if key ~= "in_dims" and key ~= "out_dims" and key ~= "randomness" then
      error("redco.vmap: the options are in_dims, out_dims and randomness, got " .. tostring(key), 2)
    end
  end
  local function in_dims(i)
    local dims = options.in_dims
    if type(dims) == "table" then return dims[i] end
    return dims or 0
  end
  local out_dim = options.out_dims or 0
  return function(...)
    local args = { n = select("#", ...), ... }
    local size = batch_size_of(args, in_dims)
    return functorch.with_vmap(function(level)
      local inner = {}
      for i = 1, args.n do
        local dim = in_dims(i)
        inner[i] = dim and map_tensors(function(leaf)
          return functorch.wrap_batch(leaf, dim, level)
        end, args[i]) or args[i]
      end
      local results = { f(unpack(inner, 1, args.n)) }
      for i, result in ipairs(results) do
        results[i] = map_tensors(function(leaf)
          return functorch.unwrap_batch(leaf, out_dim, level, size)
        end, result)
      end
      return unpack(results)
    end, size, options.randomness or "error")
  end
end)

return transforms
