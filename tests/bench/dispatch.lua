-- Microseconds of one operator call from Lua: the median over rounds of many calls. One JSON line.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options { rounds = 15, calls = 2000, threads = 1 }
torch.set_num_threads(o.threads)

local function microseconds(f, calls)
  for _ = 1, math.max(50, calls / 10) do f() end
  local rounds = {}
  for round = 1, o.rounds do
    local start = clock.now()
    for _ = 1, calls do f() end
    rounds[round] = (clock.now() - start) / calls * 1e6
  end
  return clock.median(rounds)
end

local x, y = torch.randn { 4 }, torch.randn { 4 }
local a, b = torch.randn { 64, 64 }, torch.randn { 64, 64 }
local small, large = torch.empty { 4 }, torch.empty { 64, 64 }
local leaf = torch.randn({ 4 }, { requires_grad = true })

local operations = {
  { "add4", function() return x + y end },
  { "add4_out", function() return torch.add(x, y, { out = small }) end },
  { "add4_inplace", function() return x:add_(y) end },
  { "matmul64", function() return a:matmul(b) end },
  { "matmul64_out", function() return torch.mm(a, b, { out = large }) end },
  { "empty4", function() return torch.empty(4) end },
  { "add4_requires_grad", function() return leaf + y end, grad = true },
  { "add4_sum_backward", function() (leaf + y):sum():backward() end, grad = true, fewer = 10 },
}

local figures = {}
for _, operation in ipairs(operations) do
  local name, f = unpack(operation)
  local with_mode = operation.grad and torch.enable_grad or torch.no_grad
  local time = with_mode(microseconds, f, math.floor(o.calls / (operation.fewer or 1)))
  figures[#figures + 1] = ('"%s": %.3f'):format(name, time)
end
print(('{"name": "dispatch", "us": {%s}, "threads": %d, "peak_rss_mb": %.1f}'):format(
  table.concat(figures, ", "), o.threads, clock.peak_rss_mb()))
