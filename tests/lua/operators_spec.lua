-- Calls of ATen operators from Lua against the values PyTorch gives for the same calls.
local testing = require "testing"
local torch = require "redco.torch"

-- How far a result may be from the stored value: relative and absolute. Other types: not at all.
local tolerances = {
  float32 = { 1e-5, 1e-6 }, float64 = { 1e-10, 1e-12 }, bfloat16 = { 1e-2, 1e-3 },
  float16 = { 1e-3, 1e-4 }, complex64 = { 1e-5, 1e-6 }, complex128 = { 1e-10, 1e-12 },
}
local exact = { 0, 0 }

local none = setmetatable({}, { __tostring = function() return "none" end })

-- The elements in a list; those of complex tensors as pairs.
local function elements(tensor)
  if tensor.dtype:match("^complex") then
    tensor = torch.view_as_real(tensor:resolve_conj():resolve_neg())
  end
  if tensor.dtype:match("float") then tensor = tensor:to("float64") end
  return tensor:reshape({ -1 }):tolist()
end

local function make_tensor(description)
  local dtype, shape, data = unpack(description)
  if dtype:match("^complex") then
    local real = dtype == "complex64" and "float32" or "float64"
    local pairs_shape = { unpack(shape) }
    table.insert(pairs_shape, 2)
    return torch.view_as_complex(torch.tensor(data, { dtype = real }):reshape(pairs_shape))
  end
  return torch.tensor(data, { dtype = dtype }):reshape(shape)
end

-- A copy whose tensors can be changed in place: each case starts from the inputs as written.
local function fresh(value)
  if torch.is_tensor(value) then return value:clone() end
  if type(value) ~= "table" or value == none then return value end
  local copy = {}
  for key, entry in pairs(value) do copy[key] = fresh(entry) end
  return copy
end

local function is_close(x, y, rtol, atol)
  if x == y or (x ~= x and y ~= y) then return true end
  if type(x) ~= "number" or type(y) ~= "number" then return false end
  return math.abs(x - y) <= atol + rtol * math.abs(y)
end

local function expect_tensor(actual, expected, what, is_exact)
  if not torch.is_tensor(actual) then
    error(what .. ": expected a tensor, got " .. tostring(actual), 0)
  end
  local dtype, shape = expected[1], expected[2]
  local form = ("%s[%s]"):format(dtype, table.concat(shape, ", "))
  local got = ("%s[%s]"):format(actual.dtype, table.concat(actual.shape, ", "))
  if form ~= got then error(("%s: expected %s, got %s"):format(what, form, got), 0) end
  local tolerance = is_exact and exact or tolerances[dtype] or exact
  local want, have = elements(make_tensor(expected)), elements(actual)
  for k = 1, #want do
    -- `true` and 1 are the same bool.
    local y = type(want[k]) == "boolean" and (want[k] and 1 or 0) or want[k]
    local x = type(have[k]) == "boolean" and (have[k] and 1 or 0) or have[k]
    if not is_close(x, y, unpack(tolerance)) then
      error(("%s: element %d of %s: expected %s, got %s"):format(what, k, form, tostring(want[k]),
        tostring(have[k])), 0)
    end
  end
end

local function expect_result(actual, expected, what, is_exact)
  if expected == none then
    if actual ~= nil then error(what .. ": expected nil, got " .. tostring(actual), 0) end
  elseif type(expected) ~= "table" then
    local close = type(actual) == type(expected) and is_close(actual, expected, 1e-12, 0)
    if not close then
      error(("%s: expected %s, got %s"):format(what, tostring(expected), tostring(actual)), 0)
    end
  elseif expected[1] == "list" then
    assert(type(actual) == "table", what .. ": expected a list")
    testing.expect_equal(#actual, #expected - 1)
    for k = 2, #expected do
      expect_result(actual[k - 1], expected[k], what .. "[" .. k - 1 .. "]", is_exact)
    end
  else
    expect_tensor(actual, expected, what, is_exact)
  end
end

local function run_case(case, seed, is_exact)
  local name, kind = case[1], case[2]
  local arguments = fresh(case[3])
  local n_arguments = #arguments
  for k = 1, n_arguments do
    if arguments[k] == none then arguments[k] = nil end
  end
  local receiver = kind == "m" and arguments[1] or torch
  torch.manual_seed(seed)
  local results = { n = 0 }
  local function keep(...) results = { n = select("#", ...), ... } end
  keep(receiver[name](unpack(arguments, 1, n_arguments)))

  if case.changed then
    expect_result(arguments[1], case.changed, "the changed argument", is_exact)
    return
  end
  testing.expect_equal(results.n, #case - 3)
  for k = 1, results.n do
    expect_result(results[k], case[k + 3], "result " .. k, is_exact)
  end
  -- Operators in place return the tensor that they change.
  local named = arguments[n_arguments]
  if name:match("[^_]_$") and torch.is_tensor(arguments[1]) then
    assert(rawequal(results[1], arguments[1]), "expected the first argument itself as the result")
  elseif type(named) == "table" and torch.is_tensor(named.out) then
    assert(rawequal(results[1], named.out), "expected `out` itself as the result")
  end
end

local operators, n_operators, n_cases = {}, 0, 0

-- Cases in `left_out` (names, by on_gpu.lua) do not run.
local function run_group(cases, seed, is_exact, left_out)
  local failures = {}
  for _, case in ipairs(cases) do
    if left_out[case[1]] then goto next end
    local base = case[1]:match("^__") and case[1] or (case[1]:gsub("_$", ""))
    if not operators[base] then
      operators[base] = true
      n_operators = n_operators + 1
    end
    n_cases = n_cases + 1
    local ok, message = pcall(run_case, case, seed, is_exact)
    if not ok then
      failures[#failures + 1] = ("op_cases.lua:%d: %s%s: %s"):format(case.line,
        case[2] == "m" and ":" or "torch.", case[1], message)
    end
    ::next::
  end
  if #failures > 0 then
    error(("%d of %d cases:\n%s"):format(#failures, #cases, table.concat(failures, "\n")), 0)
  end
end

local env = setmetatable({ none = none, inf = math.huge, nan = 0 / 0, generator = torch.Generator },
  { __index = function(_, key) error("the cases have no input '" .. tostring(key) .. "'") end })

function env.input(name, description)
  env[name] = make_tensor(description)
end

function env.group(name, flags, body)
  local cases = {}
  env.case = function(case)
    case.line = debug.getinfo(2, "l").currentline
    cases[#cases + 1] = case
  end
  body()
  testing.test("operators: " .. name, function()
    run_group(cases, env.seed, flags.exact, testing.left_out and testing.left_out[name] or {})
  end)
end

local folder = debug.getinfo(1, "S").source:match("^@(.*)operators_spec%.lua$")
setfenv(assert(loadfile(folder .. "op_cases.lua")), env)()

testing.test("the cases call at least 300 operators", function()
  print(("%d cases of %d operators"):format(n_cases, n_operators))
  assert(n_operators >= 300, "only " .. n_operators)
end)

testing.finish()
