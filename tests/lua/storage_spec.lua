-- torch.save, torch.load and torch.frombuffer.
local redco = require "redco"
local testing = require "testing"

local torch, tree = redco.torch, redco.tree
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local folder = testing.folder()
local path = folder .. "/file.safetensors"

local function write(bytes) return testing.write(path, bytes) end

local function round_trip(value)
  torch.save(value, path)
  return torch.load(path)
end

--- Fails unless two trees have the same structure, kinds and values.
local function expect_same(actual, expected)
  expect_equal(table.concat(tree.paths(actual), " "), table.concat(tree.paths(expected), " "))
  tree.map(function(a, b)
    expect_equal(torch.is_tensor(a), torch.is_tensor(b))
    if torch.is_tensor(b) then
      expect_equal(a.dtype, b.dtype)
      expect_equal(table.concat(a.shape, ","), table.concat(b.shape, ","))
      assert(torch.equal(a, b), "values differ")
    else
      expect_equal(type(a), type(b))
      expect_equal(a, b)
    end
  end, actual, expected)
end

test("a tree of tensors, numbers, texts, booleans, lists and empty tables comes back", function()
  local value = {
    weight = torch.randn { 3, 4 },
    layers = { { b = torch.arange(5) }, { b = torch.tensor { true, false } }, 3.5 },
    name = "a \"text\" with\nlines and \226\130\172", step = 12, rate = 1e-3, on = true,
      off = false,
    empty = {}, nested = { deep = { deeper = torch.tensor(7) } },
      ["dotted.key"] = torch.zeros { 2 },
    [""] = 1, half = torch.randn({ 3 }, { dtype = "bfloat16" }),
  }
  local back = round_trip(value)
  expect_same(back, value)
  expect_equal(#back.layers, 3)
  expect_equal(next(back.empty), nil)
end)

test("all kinds of one leaf, and every dtype", function()
  for _, value in ipairs { 5, 0.1, "text", true, false, -1, 2 ^ 40 } do
    expect_equal(round_trip(value), value)
  end
  expect_close(round_trip(torch.ones { 2 }), torch.ones { 2 })
  for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16",
    "int8", "uint8", "bool" } do
    local t = torch.tensor({ { 1, 0, 1 }, { 0, 0, 1 } }):to(dtype)
    expect_same(round_trip { t = t }, { t = t })
  end
  expect_same(round_trip { t = torch.zeros { 0, 3 } }, { t = torch.zeros { 0, 3 } })
end)

test("views, transposed and overlapping tensors are saved as what they show", function()
  local base = torch.arange(12):view { 3, 4 }
  local value = { a = base:t(), b = base:select(1, 2), c = base[0]:expand { 2, 4 }, d = base }
  local back = round_trip(value)
  for name, t in pairs(value) do assert(torch.equal(back[name], t), name) end
end)

test("integers beyond 2^53 keep every digit", function()
  local value = round_trip { t = torch.tensor { 9007199254740993LL, -9223372036854775807LL - 1 } }
  expect_equal(tostring(value.t[0]:item()), "9007199254740993LL")
  expect_equal(tostring(round_trip { n = 9007199254740993LL }.n), "9007199254740993LL")
end)

test("files of Python's torch.save: tensors by name, which share what they share there", function()
  local corpus = os.getenv "REDCO_SOURCE" .. "/fuzz/corpus/torch_file/"
  local value = torch.load(corpus .. "legacy")
  local whole = torch.arange(16, { dtype = "float32" }):view { 4, 4 }
  expect_same(value, { a = whole, b = whole[0], c = torch.zeros { 0, 3 } })
  value.b:fill_(9)
  expect_equal(value.a[0][3]:item(), 9)
  expect_same(torch.load(corpus .. "archive"), { a = torch.ones({ 3 }, { dtype = "bool" }) })
  local other = folder .. "/other.bin"
  testing.write(other, redco.data.read(corpus .. "archive"):sub(1, 900))
  expect_error(function() torch.load(other) end, "storage_spec.lua:", other, "zip archive")
end)

test("a loaded tensor is written to without changing the file", function()
  torch.save({ t = torch.zeros { 4 } }, path)
  local first = torch.load(path)
  first.t:fill_(5)
  expect_close(torch.load(path).t, torch.zeros { 4 })
  expect_close(first.t, torch.full({ 4 }, 5))
end)

test("a file that was written over leaves what was loaded from it before", function()
  torch.save({ t = torch.zeros { 4 } }, path)
  local first = torch.load(path)
  torch.save({ t = torch.ones { 4 } }, path)
  expect_close(first.t, torch.zeros { 4 })
  expect_close(torch.load(path).t, torch.ones { 4 })
end)

test("trained parameters are saved without their history", function()
  local w = torch.ones({ 2 }):requires_grad_()
  local back = round_trip { w = w, y = w * 2 }
  assert(not back.w.requires_grad and not back.y.requires_grad)
  expect_close(back.y, torch.full({ 2 }, 2))
end)

-- The format of the files: 8 bytes of the header's length, JSON, data.
local function foreign(header, data)
  local size = #header
  return string.char(size % 256, math.floor(size / 256), 0, 0, 0, 0, 0, 0) .. header .. data
end

test("a file of another program is a flat table", function()
  write(foreign('{"a.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    .. '"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]},"__metadata__":{"format":"pt"}}',
    "\0\0\128\63\0\0\0\64" .. "\7\0\0\0\0\0\0\0"))
  local found = torch.load(path)
  expect_close(found["a.weight"], torch.tensor { 1.0, 2.0 })
  expect_equal(found.b:item(), 7)
  expect_equal(found.__metadata__, nil)
  expect_equal(#tree.paths(found), 2)
end)

test("a file cut short anywhere is an error with its name", function()
  torch.save({ a = torch.randn { 5 }, b = { 1, "x" } }, path)
  local bytes = redco.data.read(path)
  for size = 0, #bytes - 1 do
    write(bytes:sub(1, size))
    expect_error(function() torch.load(path) end, "storage_spec.lua:", path)
  end
  write(bytes)
  torch.load(path)
end)

test("files that are none, and paths that cannot be read or written", function()
  for _, bytes in ipairs { "", "text", ("\255"):rep(64), ("\0"):rep(64), foreign("{", ""),
    foreign("[]", ""), foreign('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}',
      ("x"):rep(9)),
    foreign('{"a":{"dtype":"Q7","shape":[2],"data_offsets":[0,8]}}', ("x"):rep(8)),
    foreign('{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', ("x"):rep(8)) } do
    write(bytes)
    expect_error(function() torch.load(path) end, "storage_spec.lua:", path)
  end
  expect_error(function() torch.load(folder .. "/nothing") end, "storage_spec.lua:", "nothing",
    "No such file")
  expect_error(function() torch.load(folder) end, "storage_spec.lua:", folder)
  expect_error(function() torch.save({}, folder .. "/no/such/folder") end, "storage_spec.lua:",
    "no/such/folder")
  expect_error(function() torch.save({}, folder) end, "storage_spec.lua:", folder)
  expect_error(function() torch.load() end, "storage_spec.lua:", "torch.load")
  expect_error(function() torch.load {} end, "storage_spec.lua:", "torch.load")
  expect_error(function() torch.save(torch.zeros { 1 }) end, "storage_spec.lua:", "torch.save")
end)

test("what no file can hold is refused by its place, and the file stays as it was", function()
  torch.save({ t = torch.ones { 2 } }, path)
  local loop = {}
  loop.loop = loop
  for _, value in ipairs { { a = print }, { a = { 1, x = 2 } }, { [true] = 1 }, loop,
    { a = torch.Generator(1) }, { a = coroutine.create(print) } } do
    expect_error(function() torch.save(value, path) end, "storage_spec.lua:")
  end
  expect_error(function() torch.save({ a = { b = print } }, path) end, "function")
  expect_close(torch.load(path).t, torch.ones { 2 })
end)

test("frombuffer: types, offset and count", function()
  local bytes = "\1\0\0\0\2\0\0\0\255\255\255\255xyz"
  expect_close(torch.frombuffer(bytes, { dtype = "int32" }), torch.tensor({ 1, 2, -1 },
    { dtype = "int32" }))
  expect_close(torch.frombuffer(bytes, { dtype = "int32", offset = 4, count = 1 }),
    torch.tensor({ 2 }, { dtype = "int32" }))
  expect_equal(torch.frombuffer(bytes, { dtype = "uint8" }):numel(), 15)
  expect_equal(torch.frombuffer("", { dtype = "uint8" }):numel(), 0)
  expect_close(torch.frombuffer("\0\0\192\63", { dtype = "float32" }), torch.tensor { 1.5 })
  expect_error(function() torch.frombuffer(bytes, { dtype = "uint8", offset = 16 }) end,
    "storage_spec.lua:", "offset 16", "15")
  expect_error(function() torch.frombuffer(bytes, { dtype = "uint8", offset = -1 }) end,
    "offset -1")
  expect_error(function() torch.frombuffer(bytes, { dtype = "int32", count = 4 }) end, "4", "15")
  expect_error(function() torch.frombuffer(bytes, { dtype = "int32", count = -1 }) end,
    "storage_spec.lua:")
  expect_error(function() torch.frombuffer(bytes, {}) end, "storage_spec.lua:")
  expect_error(function() torch.frombuffer(5, { dtype = "int32" }) end, "storage_spec.lua:")
  expect_error(function() torch.frombuffer(bytes, { dtype = "int33" }) end,
    "storage_spec.lua:", "int33")
end)

test("frombuffer refuses a name it does not know", function()
  expect_error(function() torch.frombuffer("abc", { dtype = "int8", ofset = 1 }) end,
    "storage_spec.lua:", "ofset", "offset")
end)

-- ---- torch.jit.load: the module that tests/tools/make_nn_cases.py wrote ----

local stored = torch.load "nn_cases.safetensors"
local module_input, module_output = stored["scripted.in.x"], stored["scripted.out.y"]

test("a TorchScript module gives the stored result, and its parameters by name", function()
  local module = torch.jit.load "script_module.pt"
  local y, count = module(nil, module_input)
  expect_close(y, module_output, 1e-6)
  expect_equal(count, 8)
  expect_close(module(nil, module_input, 2.5), module_output * 2.5, 1e-6)
  expect_equal(table.concat(tree.paths(module.params), " "), "linear.bias linear.weight n_calls")
  expect_close(module.params["linear.weight"], stored["scripted.p.linear.weight"])
  expect_equal(module.params.n_calls:item(), 7)
end)

test("other parameters take the module's places, gradients flow, and it is left as it was",
  function()
  local module = torch.jit.load "script_module.pt"
  local weight = stored["scripted.p.linear.weight"]:clone():requires_grad_()
  local bias = torch.zeros({ 2 }):requires_grad_()
  local y = module({ ["linear.weight"] = weight, ["linear.bias"] = bias }, module_input)
  local expected = torch.tanh(torch.linear(module_input, weight, bias))
  expect_close(y, expected, 1e-6)
  local from_module = torch.autograd.grad(y:square():sum(), { weight, bias })
  local from_lua = torch.autograd.grad(expected:square():sum(), { weight, bias })
  for i = 1, 2 do expect_close(from_module[i], from_lua[i], 1e-5, 1e-6) end
  expect_close((module(nil, module_input)), module_output, 1e-6)
  assert(not pcall(module, { ["linear.weight"] = torch.zeros { 5, 5 } }, module_input))
  expect_close((module(nil, module_input)), module_output, 1e-6)
  assert(not pcall(module, { ["linear.bias"] = bias, ["linear.wait"] = bias }, module_input))
  expect_close((module(nil, module_input)), module_output, 1e-6)
end)

test("train and eval switch a module's dropout", function()
  local module = torch.jit.load "script_module.pt"
  assert(rawequal(module:train(), module))
  local zeros = 0
  for _ = 1, 20 do zeros = zeros + module(nil, module_input):eq(0):sum():item() end
  assert(zeros > 40 and zeros < 120, zeros .. " zeros")
  module:eval()
  expect_close((module(nil, module_input)), module_output, 1e-6)
end)

test("an error names the buffers that were given with requires_grad", function()
  local source = os.getenv "REDCO_SOURCE" .. "/tests/cluster/"
  local module = torch.jit.load(source .. "script_conv.pt"):train()
  local x = torch.ones({ 2, 3, 8, 8 }, { dtype = "float64" })
  local params = tree.map(function(p)
    return p:is_floating_point() and p:clone():requires_grad_() or p
  end, module.params)
  expect_error(function() module(params, x) end, "storage_spec.lua:", "running_mean",
    "These buffers of the module require gradients: stem.1.running_mean, stem.1.running_var",
    "detach", "redco.optim.freeze")
end)

test("every call of a module draws and computes as the first one", function()
  local x, first = torch.randn({ 4, 3 }, { generator = torch.Generator(2) }), nil
  for made = 1, 2 do
    local module = torch.jit.load("script_dropout.pt"):train()
    for i = 1, 5 do
      local params = tree.map(function(p) return p:clone():requires_grad_() end, module.params)
      local y = redco.with_rng(redco.Rng(5), function() return (module(params, x)) end)
      first = first or y
      assert(torch.equal(y, first), ("call %d of module %d gives other values"):format(i, made))
    end
  end
end)

test("a whole number goes where a module asks for a float", function()
  local module = torch.jit.load "script_module.pt"
  expect_close((module(nil, module_input, 2)), module_output * 2, 1e-6)
end)

test("files that are no modules, and wrong calls, are errors of the caller's line", function()
  local module = torch.jit.load "script_module.pt"
  local function wrong(body, ...) expect_error(body, "storage_spec.lua:", ...) end
  wrong(function() torch.jit.load(folder .. "/nothing.pt") end, "nothing.pt")
  write "this is no module"
  wrong(function() torch.jit.load(path) end, path)
  write(redco.data.read("script_module.pt"):sub(1, 3000))
  wrong(function() torch.jit.load(path) end, path)
  wrong(function() torch.jit.load(5) end, "torch.jit.load")
  wrong(function() module(nil) end, "forward")
  wrong(function() module(nil, "text") end, "forward")
  wrong(function() module(nil, module_input, 1.5, 3) end, "forward")
  wrong(function() module({ ["linear.wait"] = torch.zeros { 1 } }, module_input) end,
    "'linear.wait'")
  wrong(function() module({ ["linar.weight"] = torch.zeros { 1 } }, module_input) end, "linar")
  wrong(function() module({ 5 }, module_input) end, "params")
  wrong(function() return module.weights end, "'weights'", "params")
end)

test("a parameter of a module that is no tensor is refused by its name", function()
  local module = torch.jit.load "script_module.pt"
  expect_error(function() module({ ["linear.weight"] = 5 }, module_input) end, "storage_spec.lua:",
    "linear.weight")
end)

testing.finish()
