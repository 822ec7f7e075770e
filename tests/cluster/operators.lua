-- Every call of tests/lua/op_cases.lua on parts: it must give what it gives on whole tensors, with
-- gradients and without. `--seed=2` places the arguments otherwise, `--count=20` tries as many
-- placements of each call.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local options = redco.options { seed = 1, count = 1, only = "" }
local deployer = redco.Deployer { seed = 1, n_model_shards = 2, verbose = false }
assert(deployer.mesh.mp == 2)  -- and dp is 1 or 2
local random = torch.Generator(options.seed)

-- Refusals that are documented: they are errors, not wrong values.
local refusals = {
  "cannot share memory", "cannot be resized", "would move between the processes",
  "a view of a leaf Variable that requires grad",
}

-- Calls without values to compare.
local without_values = {
  empty = true, empty_like = true, empty_permuted = true, empty_strided = true, new_empty = true,
  new_empty_strided = true, resize_ = true, resize_as_ = true, set_ = true, data_ptr = true,
}

-- Where the results after so many depend on the kernel that was chosen.
local n_compared = { embedding_bag = 1 }

local skipped_groups = { ["random"] = true, ["random through functions"] = true, factories = true }

local none = setmetatable({}, { __tostring = function() return "none" end })

local function below(n) return torch.randint(0, n, { 1 }, { generator = random }):item() end

local function map(value, f)
  if torch.is_tensor(value) then return f(value) end
  if type(value) ~= "table" or value == none then return value end
  local copy = {}
  for key, entry in pairs(value) do copy[key] = map(entry, f) end
  return copy
end

-- Split along any of its dimensions, a sum to come, or whole: on each dimension of the mesh.
local function placed(tensor)
  local n, placement = tensor:dim(), {}
  for _, axis in ipairs { "dp", "mp" } do
    local choice = below(n + 2)
    local may_be_sum = choice == n and tensor.dtype:match "^float"
    placement[axis] = choice < n and choice or may_be_sum and "partial" or "replicate"
  end
  return redco.shard(tensor, placement)
end

local function describe(value)
  local text = {}
  map(value, function(tensor)
    local placement = "plain"
    if tensor:is_sharded() then
      placement = tensor:placement().dp .. ", " .. tensor:placement().mp
    end
    local shape = table.concat(tensor.shape, ", ")
    text[#text + 1] = ("%s[%s] %s"):format(tensor.dtype, shape, placement)
  end)
  return table.concat(text, "; ")
end

local function call(case, arguments)
  local list, n = {}, #case[3]
  for k = 1, n do
    if arguments[k] ~= none then list[k] = arguments[k] end
  end
  local receiver = case[2] == "m" and list[1] or torch
  local function keep(...) return { n = select("#", ...), ... } end
  local results = keep(receiver[case[1]](unpack(list, 1, n)))
  for k = (n_compared[case[1]] or results.n) + 1, results.n do results[k] = nil end
  if case.changed then results = { n = 1, arguments[1] } end
  return results
end

local function gradients(results, arguments)
  local leaves, total = {}, nil
  map(arguments, function(tensor)
    if tensor.requires_grad then leaves[#leaves + 1] = tensor end
  end)
  map(results, function(tensor)
    if not tensor.requires_grad then return end
    local value = tensor.dtype:match "^complex" and torch.view_as_real(tensor) or tensor
    local term = value:double():sin():sum()
    total = total and total + term or term
  end)
  if not total then return {} end
  return torch.autograd.grad({ total }, leaves, { allow_unused = true })
end

local function compare(actual, expected, what)
  if not torch.is_tensor(expected) then
    if type(expected) ~= "table" then
      local same = actual == expected or (actual ~= actual and expected ~= expected)
      if not same then error(("%s: %s, not %s"):format(what, actual, expected), 0) end
      return
    end
    for key, entry in pairs(expected) do compare(actual[key], entry, what .. " " .. key) end
    return
  end
  if not torch.is_tensor(actual) then error(what .. ": no tensor", 0) end
  local whole = actual:full()
  local form = ("%s[%s]"):format(whole.dtype, table.concat(whole.shape, ", "))
  local wanted = ("%s[%s]"):format(expected.dtype, table.concat(expected.shape, ", "))
  if form ~= wanted then error(("%s: %s, not %s"):format(what, form, wanted), 0) end
  local function values(t)
    if t.dtype:match "^complex" then t = torch.view_as_real(t:resolve_conj():resolve_neg()) end
    return t:detach():double()
  end
  local rough = expected.dtype:match "16$"
  local tolerance = rough and 1e-2 or 2e-4
  if not torch.allclose(values(whole), values(expected),
    { rtol = tolerance, atol = tolerance, equal_nan = true }) then
    error(("%s: %s\nnot %s"):format(what, tostring(whole), tostring(expected)), 0)
  end
end

local function run(case, with_gradients)
  local function fresh(tensor)
    tensor = tensor:clone()
    local differentiable = with_gradients and tensor.dtype:match "^float"
    return differentiable and tensor:requires_grad_() or tensor
  end
  local function all(arguments)
    local function body()
      local results = call(case, arguments)
      return { results, with_gradients and gradients(results, arguments) or {} }
    end
    if with_gradients then return pcall(body) end
    return pcall(function() return torch.no_grad(body) end)
  end
  local ok, expected = all(map(case[3], fresh))
  if not ok then return end
  local arguments = map(case[3], function(tensor) return fresh(placed(tensor)) end)
  local where = ("op_cases.lua:%d: %s %s (%s)"):format(case.line, case[1],
    with_gradients and "with gradients" or "without gradients", describe(arguments))
  local done, actual = all(arguments)
  if done then
    local same, message = pcall(compare, actual, expected, "result")
    return not same and where .. ": " .. message or nil
  end
  for _, text in ipairs(refusals) do
    if tostring(actual):find(text, 1, true) then return end
  end
  return where .. ": " .. tostring(actual):gsub("\n.*", "")
end

local inputs = setmetatable({ none = none, inf = math.huge, nan = 0 / 0,
  generator = torch.Generator },
  { __index = function(_, key) error("the cases have no input '" .. tostring(key) .. "'") end })

function inputs.input(name, description)
  local dtype, shape, data = unpack(description)
  local form = { unpack(shape) }
  if dtype:match "^complex" then
    form[#form + 1] = 2
    data = torch.tensor(data, { dtype = dtype == "complex64" and "float32" or "float64" })
    inputs[name] = torch.view_as_complex(data:reshape(form))
  else
    inputs[name] = torch.tensor(data, { dtype = dtype }):reshape(form)
  end
end

function inputs.group(name, _, body)
  local cases, failures = {}, {}
  function inputs.case(case)
    case.line = debug.getinfo(2, "l").currentline
    cases[#cases + 1] = case
  end
  body()
  if skipped_groups[name] then return end
  testing.test("on parts: " .. name, function()
    for _, case in ipairs(cases) do
      local is_chosen = options.only == "" or case[1] == options.only
      for _ = 1, is_chosen and not without_values[case[1]] and options.count or 0 do
        for _, with_gradients in ipairs { false, true } do
          failures[#failures + 1] = run(case, with_gradients)
        end
      end
    end
    if #failures > 0 then
      error(("%d failures:\n%s"):format(#failures, table.concat(failures, "\n")), 0)
    end
  end)
end

local path = assert(os.getenv "REDCO_SOURCE") .. "/tests/lua/op_cases.lua"
setfenv(assert(loadfile(path)), inputs)()
testing.finish()
