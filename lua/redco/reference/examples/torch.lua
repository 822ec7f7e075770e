--- torch
local a, b = torch.randn { 2, 3 }, torch.randn { 3, 4 }
print(torch.matmul(a, b).shape, a:matmul(b):equal(a:mm(b)))
--> torch.Size([2, 4])  true
local x = torch.arange(6, { dtype = torch.float32 }):view { 2, 3 }
print(x:sum({ 0 }, { keepdim = true }))  --> tensor([[3., 5., 7.]])
print(torch.cat({ x, x }, 1).shape)      --> torch.Size([2, 6])
local values, indices = x:max(1)
print(values, indices)  --> tensor([2., 5.])  tensor([2, 2])

--- torch.autocast
local a, b = torch.randn { 4, 8 }, torch.randn { 8, 2 }
local function product() return a:mm(b) end
print(product().dtype, torch.autocast("cpu", product).dtype)
--> float32  bfloat16
print(torch.autocast("cpu", { dtype = "float16" }, product).dtype)
--> float16

--- torch.enable_grad
local w = torch.ones({ 2 }, { requires_grad = true })
local y = torch.no_grad(function()
  return torch.enable_grad(function() return w * 2 end)
end)
print(y.requires_grad)  --> true

--- torch.frombuffer
local bytes = "\1\0\2\0\3\0"
local numbers = torch.frombuffer(bytes, { dtype = "int16", offset = 2 })
print(numbers:tolist()[1], numbers.shape)  --> 2  torch.Size([2])

--- torch.is_tensor
local x = torch.ones(2)
print(torch.is_tensor(x), torch.is_tensor(x:tolist()))  --> true  false

--- torch.load
torch.save({ w = torch.ones { 2, 3 }, step = 100 }, "state.safetensors")
local state = torch.load "state.safetensors"
print(state.w.shape, state.step)  --> torch.Size([2, 3])  100

--- torch.manual_seed
torch.manual_seed(42)
local a = torch.randn { 3 }
torch.manual_seed(42)
print(torch.randn({ 3 }):equal(a))  --> true

--- torch.no_grad
local w = torch.ones({ 2 }, { requires_grad = true })
local y = torch.no_grad(function() return w * 2 end)
print(y.requires_grad)  --> false

--- torch.save
local params = { w = torch.zeros { 2, 3 }, b = torch.zeros(3) }
torch.save(params, "params.safetensors")
print(torch.load("params.safetensors").w.shape)  --> torch.Size([2, 3])

--- torch.schemas
print(torch.schemas("relu")[1])  --> relu(Tensor self) -> Tensor

--- torch.set_float32_matmul_precision
torch.set_float32_matmul_precision "high"  -- TF32 on GPUs
print(torch.get_float32_matmul_precision())  --> high

--- torch.set_grad_enabled
local w = torch.ones({ 2 }, { requires_grad = true })
torch.set_grad_enabled(false)
print(w:sum().requires_grad)  --> false
torch.set_grad_enabled(true)
print(w:sum().requires_grad)  --> true

--- torch.set_num_threads
torch.set_num_threads(2)
print(torch.get_num_threads())  --> 2

--- torch.tensor
print(torch.tensor { { 1, 2 }, { 3, 4 } })
--> tensor([[1, 2],
-->         [3, 4]])
print(torch.tensor({ 1, 2.5 }).dtype, torch.tensor({ 1, 2 }).dtype)
--> float32  int64
print(torch.tensor({ 1, 2 }, { dtype = "float32" }))  --> tensor([1., 2.])

--- torch.use_deterministic_algorithms
torch.use_deterministic_algorithms(true, { warn_only = true })
print(torch.are_deterministic_algorithms_enabled())  --> true
torch.use_deterministic_algorithms(false)

--- torch.autograd.grad
local x = torch.tensor(3, { dtype = "float32", requires_grad = true })
local y = x ^ 3
local dy = torch.autograd.grad(y, x, { create_graph = true })[1]
local d2y = torch.autograd.grad(dy, x)[1]
print(dy:item(), d2y:item())  --> 27  18

--- torch.backends.cuda.enable_cudnn_sdp
torch.backends.cuda.enable_cudnn_sdp(false)
print(torch.backends.cuda.cudnn_sdp_enabled())  --> false

--- torch.backends.cuda.enable_flash_sdp
torch.backends.cuda.enable_flash_sdp(false)
print(torch.backends.cuda.flash_sdp_enabled())  --> false

--- torch.backends.cuda.enable_math_sdp
torch.backends.cuda.enable_math_sdp(false)
print(torch.backends.cuda.math_sdp_enabled())  --> false

--- torch.backends.cuda.enable_mem_efficient_sdp
torch.backends.cuda.enable_mem_efficient_sdp(false)
print(torch.backends.cuda.mem_efficient_sdp_enabled())  --> false

--- torch.cuda.get_device_name
for i = 0, torch.cuda.device_count() - 1 do
  print(i, torch.cuda.get_device_name(i))  --> ...
end

--- torch.cuda.max_memory_allocated
torch.cuda.reset_peak_memory_stats()
-- Here a training step runs.
local bytes = torch.cuda.max_memory_allocated()
print(("%.0f MiB"):format(bytes / 2 ^ 20))  --> ... MiB

--- torch.cuda.max_memory_reserved
local reserved = torch.cuda.max_memory_reserved()
print(("%.0f MiB"):format(reserved / 2 ^ 20))  --> ... MiB

--- torch.cuda.mem_get_info
local free, total = torch.cuda.mem_get_info()
print(("%.1f of %.1f GiB are free"):format(free / 2 ^ 30, total / 2 ^ 30))
--> ... GiB are free

--- torch.cuda.memory_allocated
local before = torch.cuda.memory_allocated()
local device = torch.cuda.is_available() and "cuda" or "cpu"
local x = torch.zeros({ 1024, 1024 }, { device = device })
print(("%.0f MiB"):format((torch.cuda.memory_allocated() - before) / 2 ^ 20))
--> ... MiB

--- torch.cuda.memory_reserved
local unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
print(("%.0f MiB in the cache"):format(unused / 2 ^ 20))  --> ... in the cache

--- torch.cuda.reset_peak_memory_stats
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated())
--> true

--- torch.cuda.set_device
torch.cuda.set_device(torch.cuda.device_count() - 1)  -- the last GPU
print(torch.zeros({ 1 }, { device = "cuda" }).device)  --> cuda:...

--- torch.cuda.synchronize
local x = torch.randn({ 4096, 4096 }, { device = "cuda" })
local y = x:mm(x)         -- returns before the GPU has computed it
torch.cuda.synchronize()  -- waits for it

--- torch.cuda.Event
local first = torch.cuda.Event { enable_timing = true }
local last = torch.cuda.Event { enable_timing = true }
first:record()
local x = torch.randn({ 1024, 1024 }, { device = "cuda" })
local y = x:mm(x)
last:record()
last:synchronize()

--- Event:elapsed_time (after torch.cuda.Event)
print(first:elapsed_time(last) .. " ms")  --> ... ms

--- torch.jit.load
local module = torch.jit.load("module.pt", { map_location = "cpu" })
print(table.concat(redco.tree.paths(module.params), " "))
--> linear.bias linear.weight n_calls
local weight = module.params["linear.weight"]
print(weight.shape)  --> torch.Size([2, 3])

--- torch.Generator
local generator = torch.Generator(42)
local order = torch.randperm(5, { generator = generator })
print(order)  --> tensor([...])

--- Generator:fold_in
local rng = redco.Rng(42)
local layers = {}
for i = 1, 3 do
  layers[i] = nn.Linear(64, 64, { generator = rng:fold_in(i) })
end
print(#layers, rng:fold_in(2):seed() == rng:fold_in(2):seed())  --> 3  true

--- Generator:set_state
local rng = redco.Rng(42)
torch.rand({ 2 }, { generator = rng })
local seed, draws = rng:state()
local x = torch.rand({ 2 }, { generator = rng })
rng:set_state(seed, draws)
print(torch.rand({ 2 }, { generator = rng }):equal(x))  --> true

--- Generator:split
local encoder_rng, decoder_rng = unpack(redco.Rng(42):split(2))
print(encoder_rng:seed() ~= decoder_rng:seed())  --> true

--- ScriptModule:__call (after torch.jit.load)
local params = redco.tree.map(torch.zeros_like, module.params)
local outputs = module(params, torch.ones { 2, 3 })  -- forward's first result
print(outputs)
--> tensor([[0., 0.],
-->         [0., 0.]])

--- ScriptModule:train (after torch.jit.load)
module:train()       -- with dropout
module:train(false)  -- without, as module:eval()
