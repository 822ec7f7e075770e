--- Function transformations: gradients over trees, and vectorisation.
local fail = require "redco.fail"
local functorch = require "redco.functorch"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"
local tree = require "redco.tree"

local transforms = {}

local function pack(...)
  return { n = select("#", ...), ... }
end

local function check_function(name, f)
  local meta = getmetatable(f)
  if type(f) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail("%s: expected a function, got %s", name, native.describe(f))
  end
end

--- Checks the name of the dtype, because operators that return a boolean do not work inside vmap.
local function is_differentiable(leaf)
  return torch.is_tensor(leaf) and (leaf.dtype:find("^b?float")
    or leaf.dtype:find("^complex")) ~= nil
end

local function differentiable_leaves(name, t)
  local found = {}
  for _, leaf in ipairs(tree.leaves(t)) do
    if is_differentiable(leaf) then found[#found + 1] = leaf end
  end
  if #found == 0 then
    fail("%s: the first argument has no floating-point tensor; torch.tensor returns int64 if all "
      .. "numbers are integers: pass { dtype = \"float32\" }", name)
  end
  return found
end

--- Returns the tree with the differentiable leaves replaced, in order.
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

local function check_loss(name, loss)
  local given = type(loss)
  if torch.is_tensor(loss) then
    if loss:numel() == 1 and loss.dtype:find("^b?float") then return end
    given = ("a Tensor %s[%s]"):format(loss.dtype, table.concat(loss.shape, ", "))
  end
  fail("%s: the function must return a floating-point tensor of one element, it returned %s", name,
    given)
end

local function map_results(f, results)
  for i = 1, results.n do results[i] = map_tensors(f, results[i]) end
  return results
end

--- Returns the gradients of `loss` with respect to `inputs`: zeros for inputs that it does not use.
local function gradients_of(loss, inputs, create_graph)
  local gradients = {}
  if loss.requires_grad and #inputs > 0 then
    gradients = torch.autograd.grad(loss, inputs, { create_graph = create_graph,
      allow_unused = true })
  end
  for i, input in ipairs(inputs) do gradients[i] = gradients[i] or torch.zeros_like(input) end
  return gradients
end

--- Computes gradients with LibTorch's autograd, for functions outside any transformation.
local function recorded(name, f, create_graph, params, ...)
  local needs_graph = create_graph
  local inputs = {}
  for i, leaf in ipairs(differentiable_leaves(name, params)) do
    -- A new node for each leaf: the gradient covers only uses of the argument, and an outer
    -- gradient still flows to the origin of the leaf.
    if leaf.requires_grad and torch.is_grad_enabled() then
      needs_graph = needs_graph ~= false
      inputs[i] = leaf:view_as(leaf)
    else
      inputs[i] = leaf:detach():requires_grad_()
    end
  end
  local args = with_leaves(params, inputs)
  local results
  if needs_graph then
    results = pack(functorch.twice_differentiable(torch.enable_grad, f, args, ...))
  else
    results = pack(torch.enable_grad(f, args, ...))
  end
  check_loss(name, results[1])
  local gradients = gradients_of(results[1], inputs, needs_graph or false)
  if not needs_graph then results = map_results(function(leaf) return leaf:detach() end,
    results) end
  return gradients, results
end

--- Computes gradients on a functorch level, inside vmap, where plain autograd does not work.
local function on_level(name, f, params, ...)
  local args = pack(...)
  return functorch.with_grad(function(level)
    local inputs = {}
    for i, leaf in ipairs(differentiable_leaves(name, params)) do
      inputs[i] = functorch.wrap_grad(leaf, level):requires_grad_()
    end
    local results = pack(f(with_leaves(params, inputs), unpack(args, 1, args.n)))
    check_loss(name, results[1])
    local gradients = gradients_of(results[1], inputs, true)
    local function unwrap(leaf) return functorch.unwrap_grad(leaf, level) end
    for i, gradient in ipairs(gradients) do gradients[i] = unwrap(gradient) end
    return gradients, map_results(unwrap, results)
  end)
end

--- Returns the options behind a function; raises an error for other names than the known ones, and
--- for redco.grad(f, params): f's arguments are those of the returned function.
local function check_names(name, known, options)
  local first = type(options) == "table" and next(options)
  if options ~= nil and (type(options) ~= "table" or first ~= nil and not known.names[first]) then
    local given = torch.is_tensor(options) and "a Tensor" or type(options) == "table"
      and ("a table with %s"):format(tostring(first)) or "a " .. type(options)
    fail("%s: expected options after the function, got %s; %s(f) returns a function: %s(f)(...) "
      .. "calls it", name, given, name, name)
  end
  for key in pairs(options or {}) do
    if not known.names[key] then fail("%s: %s, got %s", name, known.text, key) end
  end
  return options or {}
end

local gradient_options = { names = { create_graph = true },
  text = "the only option is create_graph" }

local function check_options(name, given)
  local options = check_names(name, gradient_options, given)
  if options.create_graph ~= nil and type(options.create_graph) ~= "boolean" then
    fail("%s: create_graph: expected true or false, got %s", name,
      native.describe(options.create_graph))
  end
  return options
end

--- Returns the function from params, ... to the value, the gradients and further results of f.
local function differentiated(name, f, options)
  check_function(name, f)
  local create_graph = check_options(name, options).create_graph
  return function(params, ...)
    local gradients, results
    if functorch.in_transform() then
      gradients, results = on_level(name, f, params, ...)
    else
      gradients, results = recorded(name, f, create_graph, params, ...)
    end
    return results[1], with_leaves(params, gradients), unpack(results, 2, results.n)
  end
end

transforms.value_and_grad = registry.define("redco.value_and_grad", [[
value_and_grad(f, {create_graph = nil}) -> function(params, ...) -> value, gradients, ...
Returns a function that computes f and its gradients with respect to the tensors of its first
argument, a tree. f returns a tensor of one element. Further results of f follow the gradients.

The gradients are a tree like `params`. A tensor that f does not use gets zeros. Leaves that are not
floating-point tensors are kept. With `create_graph` you can differentiate the gradients again; it
is on by default if `params` already require gradients.]],
  function(f, options) return differentiated("redco.value_and_grad", f, options) end)

transforms.grad = registry.define("redco.grad", [[
grad(f, {create_graph = nil}) -> function(params, ...) -> gradients
Like `value_and_grad`, but returns only the gradients. `redco.grad(redco.grad(f))` is a second
derivative.]],
  function(f, options)
    local both = differentiated("redco.grad", f, options)
    return function(...)
      local _, gradients = both(...)
      return gradients
    end
  end)

local function is_integer(value)
  return type(value) == "number" and value % 1 == 0
end

--- Returns a function from the position of an argument to its mapped dimension, or false.
local function check_in_dims(in_dims)
  if in_dims == nil then in_dims = 0 end
  if is_integer(in_dims) then return function() return in_dims end end
  if type(in_dims) ~= "table" then
    fail("redco.vmap: in_dims: expected an integer, or a list of integers and false, got %s",
      in_dims)
  end
  for i, dim in ipairs(in_dims) do
    if dim ~= false and not is_integer(dim) then
      fail("redco.vmap: in_dims[%d]: expected an integer or false, got %s", i, dim)
    end
  end
  return function(i, n_args)
    if n_args ~= #in_dims then
      fail("redco.vmap: in_dims has %d entries, but there are %d arguments", #in_dims, n_args)
    end
    return in_dims[i]
  end
end

local function batch_size_of(args, dims)
  local size
  for i = 1, args.n do
    for _, leaf in ipairs(dims[i] and tree.leaves(args[i]) or {}) do
      if torch.is_tensor(leaf) then
        local dim = dims[i]
        if dim < -leaf.ndim or dim >= leaf.ndim then
          fail("redco.vmap: in_dims has dimension %d, but argument %d has a tensor [%s]", dim, i,
            table.concat(leaf.shape, ", "))
        end
        local n = leaf:size(dim)
        if size and n ~= size then
          fail("redco.vmap: argument %d has %d entries in dimension %d, others have %d", i, n, dim,
            size)
        end
        size = n
      end
    end
  end
  if not size then fail("redco.vmap: no argument has a tensor to map over") end
  if size == 0 then fail("redco.vmap: the mapped dimension is empty") end
  return size
end

local vmap_options = { names = { in_dims = true, out_dims = true, randomness = true },
  text = "the options are in_dims, out_dims and randomness" }

transforms.vmap = registry.define("redco.vmap", [[
vmap(f, {in_dims = 0, out_dims = 0, randomness = "error"}) -> function
Returns a function that applies f to every entry of its arguments at once. f sees tensors without
the mapped dimension. Arguments and results are trees.

`in_dims` is the dimension to map over: one for all arguments, or a list with one for each. `false`
stands for an argument that all entries share. `randomness` is "error", "different" (other random
numbers for each entry) or "same". `redco.vmap(redco.grad(f), {in_dims = {false, 0}})` computes
per-example gradients.]], function(f, options)
  check_function("redco.vmap", f)
  options = check_names("redco.vmap", vmap_options, options)
  local in_dims = check_in_dims(options.in_dims)
  local out_dim = options.out_dims or 0
  if not is_integer(out_dim) then
    fail("redco.vmap: out_dims: expected an integer, got %s", out_dim)
  end
  return function(...)
    local args, dims = pack(...), {}
    for i = 1, args.n do dims[i] = in_dims(i, args.n) end
    local size = batch_size_of(args, dims)
    return functorch.with_vmap(function(level)
      local inner = {}
      for i = 1, args.n do
        local dim = dims[i]
        inner[i] = dim and map_tensors(function(leaf)
          return functorch.wrap_batch(leaf, dim, level)
        end, args[i]) or args[i]
      end
      local results = map_results(function(leaf)
        return functorch.unwrap_batch(leaf, out_dim, level, size)
      end, pack(f(unpack(inner, 1, args.n))))
      return unpack(results, 1, results.n)
    end, size, options.randomness or "error")
  end
end)

return transforms
