-- Nanoseconds of a random number: those by place against LibTorch's own. One JSON line.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options { rounds = 15, elements = 2 ^ 20, threads = 1 }
torch.set_num_threads(o.threads)

local function nanoseconds(f)
  local start = clock.now()
  f()
  return (clock.now() - start) / o.elements * 1e9
end

local function ratio_of(f)
  local ours, theirs = redco.Rng(1), torch.Generator(1)
  local a, b, ratios = {}, {}, {}
  for round = 0, o.rounds do
    local mine = nanoseconds(function() f(ours) end)
    local other = nanoseconds(function() f(theirs) end)
    if round > 0 then a[round], b[round], ratios[round] = mine, other, mine / other end
  end
  return clock.median(a), clock.median(b), clock.median(ratios)
end

local x, wide = torch.empty { o.elements }, torch.empty({ o.elements }, { dtype = "float64" })
local whole = torch.empty({ o.elements }, { dtype = "int64" })
local operations = {
  { "uniform_", function(g) x:uniform_(0, 1, { generator = g }) end },
  { "normal_", function(g) x:normal_(0, 1, { generator = g }) end },
  { "bernoulli_", function(g) x:bernoulli_(0.9, { generator = g }) end },
  { "dropout", function(g) redco.nn.dropout(x, 0.1, { train = true, rng = g }) end },
  { "exponential_", function(g) x:exponential_(1, { generator = g }) end },
  { "random_", function(g) whole:random_(0, 1000, { generator = g }) end },
  { "normal_float64", function(g) wide:normal_(0, 1, { generator = g }) end },
}

local figures = {}
for _, operation in ipairs(operations) do
  local name, f = unpack(operation)
  figures[#figures + 1] = ('"%s": [%.2f, %.2f, %.2f]'):format(name, ratio_of(f))
end
print(('{"name": "random", "ns, LibTorch\'s, ratio": {%s}, "threads": %d}'):format(
  table.concat(figures, ", "), o.threads))
