-- The module `redco.so` in Debian's own luajit: LUA_CPATH names its folder.
local redco = require "redco"
local torch = require "redco.torch"
assert(redco.torch == torch and require "redco.nn" == redco.nn)

-- Operators, gradients, FFI pointers.
local x = torch.ones({ 3 }, { requires_grad = true });
(x * x):sum():backward()
assert(x.grad:sum():item() == 6 and torch.arange(3):data_ptr()[2] == 2)

-- Errors of C++ have their text, and the line of the script.
local ok, message = pcall(function() return torch.ones { 2 } + torch.ones { 3 } end)
assert(not ok and message:find("luajit_test.lua:12: ", 1, true) and message:find "size", message)
ok, message = pcall(string.rep)
assert(not ok and message:find "string expected")
assert(select(2, coroutine.resume(coroutine.create(function() torch.nothing() end))):find "nothing")

-- A training, whose callbacks are called by C++.
local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 0, verbose = false },
  loss_fn = function(_, _, p, batch) return (p.w * batch.x):pow(2):sum() end,
  collate_fn = function(examples) return { x = torch.tensor(examples) } end,
  params = { w = torch.ones { 4 } }, optimizer = redco.optim.sgd { learning_rate = 0.01 },
}
trainer:fit { train_examples = { 1, 2 }, per_device_batch_size = 1, n_epochs = 2 }
assert(trainer.step == 4)
ok, message = pcall(trainer.fit, trainer, { train_examples = {} })
assert(not ok and message ~= "C++ exception")

-- Globals are Lua's own: nothing is strict here.
undeclared = 1 -- luacheck: ignore
assert(undeclared == 1 and nothing == nil) -- luacheck: ignore

kept = { x, trainer } -- luacheck: ignore
print "fine"
