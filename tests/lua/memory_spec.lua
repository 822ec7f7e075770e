-- Tensor memory follows the tensors, though Lua's collector does not see it.
local testing = require "testing"
local redco = require "redco"
local torch = redco.torch
local ffi = require "ffi"

local expect_equal = testing.expect_equal

-- The bytes that are allocated and not freed: in the heap of tensors, and by tcmalloc or glibc.
ffi.cdef [[
int64_t tensor_heap_bytes(void) __asm__("_ZN5redco17tensor_heap_bytesEv");
int MallocExtension_GetNumericProperty(const char *property, size_t *value);
typedef struct { size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks,
  fordblks, keepcost; } mallinfo2_t;
mallinfo2_t mallinfo2(void);
]]
local has_tcmalloc, of_tcmalloc = pcall(function()
  return ffi.C.MallocExtension_GetNumericProperty
end)
local function malloc_bytes()
  if has_tcmalloc then
    local value = ffi.new "size_t[1]"
    assert(of_tcmalloc("generic.current_allocated_bytes", value) == 1)
    return tonumber(value[0])
  end
  local info = ffi.C.mallinfo2()
  return tonumber(info.uordblks + info.hblkhd)
end
local function live_mb() return (malloc_bytes() + tonumber(ffi.C.tensor_heap_bytes())) / 2 ^ 20 end

-- A sanitizer has its own allocator: there is nothing to measure then.
local test = testing.test
do
  local before = live_mb()
  local probe = torch.zeros(2 ^ 24)
  if live_mb() - before < 60 then
    print("this program has another allocator: memory is not measured")
    test = function() end
  end
  assert(#probe == 2 ^ 24)
end

local function settled_mb()
  for _ = 1, 3 do collectgarbage() end
  return live_mb()
end

local MB = 2 ^ 20 / 4 -- elements of float32

--- The most that was alive beside what was before, over `n` calls of `step`.
local function peak_of(n, step)
  local before, peak = settled_mb(), 0
  for i = 1, n do
    step(i)
    peak = math.max(peak, live_mb() - before)
  end
  return peak
end

test("the measure sees a tensor come and go", function()
  local before = settled_mb()
  local kept = torch.zeros(100 * MB)
  local held = live_mb() - before
  assert(held > 99 and held < 101, held)
  assert(kept:numel() == 100 * MB)
  kept = nil -- luacheck: ignore 311
  assert(settled_mb() - before < 1)
end)

test("10,000 temporaries of 1 MB hold less than 80 MB", function()
  local peak = peak_of(10000, function() torch.empty(MB) end)
  assert(peak < 80, "MB at the peak: " .. peak)
end)

test("temporaries of arithmetic, of in-place chains and of views", function()
  local x = torch.ones(MB)
  local peak = peak_of(600, function()
    local y = (x + 1) * 2 - x
    y:add_(1)
    assert(#(y:view(2, -1)[0] + 1) == MB / 2)
  end)
  assert(peak < 80, "MB at the peak: " .. peak)
end)

test("a few large temporaries", function()
  local peak = peak_of(200, function() torch.empty(32 * MB) end)
  -- one is being made while the last may wait for the collector
  assert(peak < 4 * 32, "MB at the peak: " .. peak)
end)

test("many small temporaries", function()
  -- glibc walks its list of freed pieces to answer, so it is asked seldom
  local peak = peak_of(200, function()
    for _ = 1, 1000 do torch.empty(64) end
  end)
  assert(peak < 80, "MB at the peak: " .. peak)
end)

test("with 100,000 tables resident in Lua", function()
  local examples = {}
  for i = 1, 100000 do examples[i] = { text = "example " .. i, label = i,
    ids = { i, i + 1, i + 2 } } end
  local heap_mb = collectgarbage("count") / 1024
  local start = os.clock()
  local peak = peak_of(10000, function() torch.empty(MB) end)
  local seconds = os.clock() - start
  -- the collector walks a large heap once for several times its size of tensor bytes

  assert(peak < math.max(64, 8 * heap_mb), ("MB at the peak: %g with a heap of %g"):format(peak,
    heap_mb))
  assert(seconds < 20, "seconds: " .. seconds)
  expect_equal(#examples, 100000)
end)

test("tensors that stay do not make the loop slow or the peak grow", function()
  local kept = {}
  for i = 1, 100 do kept[i] = torch.ones(MB) end
  local peak = peak_of(2000, function() torch.empty(MB) end)
  assert(peak < 80, "MB at the peak: " .. peak)
  expect_equal(#kept, 100)
end)

test("a training loop holds its memory", function()
  local w = torch.randn({ 512, 512 }, { requires_grad = true })
  local x = torch.randn { 256, 512 }
  local function step()
    local loss = torch.mm(torch.relu(torch.mm(x, w)), w):pow(2):mean()
    loss:backward()
    torch.no_grad(function() w:sub_(w.grad * 1e-6) end)
    w.grad = nil
  end
  for _ = 1, 20 do step() end
  local before = settled_mb()
  local peak = peak_of(60, step)
  assert(peak < 80, "MB at the peak: " .. peak)
  assert(settled_mb() - before < 1, "MB left: " .. settled_mb() - before)
end)

test("gradients of redco.grad are freed, and so are graphs that are never used", function()
  local x = torch.ones(MB)
  local gradient = redco.grad(function(p) return (p:exp() * p):sum() end)
  local before = settled_mb()
  local peak = peak_of(200, function() gradient(x) end)
  assert(peak < 96, "MB at the peak: " .. peak)
  local leaf = torch.ones(MB):requires_grad_()
  peak = peak_of(200, function() return leaf:exp():sin():sum() end)
  assert(peak < 96, "MB at the peak: " .. peak)
  leaf = nil
  assert(settled_mb() - before < 1, leaf)
end)

test("an error does not keep what was made before it", function()
  local before = settled_mb()
  for _ = 1, 200 do
    pcall(function()
      local made = torch.ones(MB)
      return made + torch.ones(3)
    end)
  end
  assert(settled_mb() - before < 4, "MB left: " .. settled_mb() - before)
end)

--- How many cycles of the collector f takes: each finalizes what is garbage then.
local function cycles(f)
  local n, is_counting = 0, true
  local function arm()
    getmetatable(newproxy(true)).__gc = function()
      n = n + 1
      if is_counting then arm() end
    end
  end
  collectgarbage()
  collectgarbage "stop" -- it works for tensors all the same
  arm()
  f()
  is_counting = false
  collectgarbage "restart"
  return n
end

test("log-probabilities hold no logits, those of a capped head neither", function()
  local ids = torch.randint(0, 70000, { 2, 130 })
  local inputs = { input_ids = ids, labels = ids:clone() }
  local model = redco.models.from_config { model_type = "gemma2", vocab_size = 70000,
    hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
    num_key_value_heads = 1, head_dim = 4, max_position_embeddings = 256 }
  for _, p in pairs(model.params) do p:requires_grad_() end
  local before = settled_mb()
  local each = model.logprobs(model.params, inputs, { shift = true })
  local held = settled_mb() - before
  assert(held < 10, ("%.0f MB are held; the logits have 69"):format(held))
  each:sum():backward()
end)

testing.test("the collector works for memory of the CPU, not for meta tensors and views", function()
  local function repeated(n, f) return function() for _ = 1, n do f() end end end
  collectgarbage()
  local MB_due = math.max(32, collectgarbage "count" / 1024 * 6)
  -- `base` ends what is due for the tests before.
  local meta, base = torch.empty({ 16 * MB }, { device = "meta" }), torch.empty(2 * MB_due * MB)
  expect_equal(cycles(repeated(1000, function() meta:add(1) end)), 0)
  expect_equal(cycles(repeated(1000, function() base:view { 2, -1 } end)), 0)
  expect_equal(cycles(repeated(1000, function() base:narrow(0, 1, 5) end)), 0)
  expect_equal(cycles(repeated(1000, function() torch.empty(16) end)), 0)
  -- More than can wait: each ends the running cycle.
  expect_equal(cycles(repeated(20, function() torch.empty(2 * MB_due * MB) end)), 20)
end)

testing.test("a tensor that only others refer to stays valid", function()
  local view, address
  do
    local base = torch.arange(1000):double()
    view = base[{ { 10, 20 } }]
    address = base:address()
  end
  for _ = 1, 10 do
    collectgarbage()
    torch.full({ 1000 }, -1, { dtype = "float64" })
  end
  expect_equal(view[0]:item(), 10)
  expect_equal(view:sum():item(), 145)
  assert(ffi.cast("double*", address)[11] == 11)
  -- a gradient's leaf that Lua forgot
  local loss
  local gradients = {}
  do
    local x = torch.ones(1000):requires_grad_()
    gradients[1] = x
    loss = (x * torch.arange(1000)):sum()
  end
  collectgarbage()
  loss:backward()
  expect_equal(gradients[1].grad[7]:item(), 7)
end)

testing.test("tensors in a table that the collector finalises with them", function()
  -- userdata and their owners die in one cycle, in any order
  for _ = 1, 100 do
    local owner = { torch.ones(10), {} }
    owner[2].back = owner
    owner[2].sum = owner[1]:sum()
  end
  collectgarbage()
  collectgarbage()
  expect_equal(torch.ones(3):sum():item(), 3)
end)

test("resident memory is flat over a long loop", function()
  local function resident_mb()
    local file = assert(io.open("/proc/self/status"))
    local kb = tonumber(file:read("*a"):match("VmRSS:%s*(%d+)"))
    file:close()
    return kb / 1024
  end
  for _ = 1, 1000 do torch.ones(MB):add_(1) end
  local before = resident_mb()
  for _ = 1, 5000 do torch.ones(MB):add_(1) end
  local grown = resident_mb() - before
  assert(grown < 32, "MB grown: " .. grown)
end)

testing.finish()
