-- Calls that LibTorch's kernels would read or write outside of a tensor for: each is an error.
local testing = require "testing"
local torch = require "redco.torch"

local test, expect_error = testing.test, testing.expect_error

local function ints(sizes, value) return torch.full(sizes, value, { dtype = "int64" }) end
local most, least = 0x7fffffffffffffffLL, -0x7fffffffffffffffLL - 1LL
local function ones(...) return torch.ones { ... } end

-- The operator, a part of the message, its arguments.
local wild = {
  { "ctc_loss", "expected 0 to 19, got 20", ones(50, 1, 20):log_softmax(-1), torch.tensor { { 1,
    20, 3 } },
    torch.tensor { 50 }, torch.tensor { 3 } },
  { "ctc_loss", "blank", ones(5, 1, 4), torch.tensor { { 1 } }, { 5 }, { 1 }, -1 },
  { "ctc_loss", "target_lengths", ones(5, 2, 4), torch.tensor { 1, 2, 3 }, { 5, 5 }, { 2, 2 } },
  { "linalg_ldl_solve", "pivots", torch.eye(4), ints({ 4 }, 5):int(), ones(4, 4) },
  { "lu_unpack", "LU_pivots", ones(0, 2, 5), ints({ 5 }, 1):int() },
  { "linalg_eigvals", "NaN", torch.full({ 3, 3 }, 0 / 0) },
  { "segment_reduce", "unsafe", ones(4), "sum", { lengths = torch.tensor { 1000000 },
    unsafe = true } },
  { "sparse_coo_tensor", "size is inconsistent", torch.tensor { { 7 } }, ones(1), { 2 } },
  { "sparse_csr_tensor", "", torch.tensor { 0, 1, 2 }, torch.tensor { 100000000, 5000000 },
    torch.tensor { 1.5, 2.5 }, { 2, 2 } },
  { "scaled_dot_product_attention", "the same length", ones(1, 1, 4, 8), ones(1, 1, 1, 8),
    ones(1, 1, 9999, 8) },
  { "scaled_dot_product_attention", "one head", ones(1, 0, 4, 8), ones(1, 0, 4, 8), ones(1, 0, 4,
    8) },
  { "lstm", "params[1]", ones(1, 1, 4), { ones(1, 1, 8), ones(1, 1, 8) }, { ones(4, 4), ones(4,
    4) }, false, 1,
    0, false, false, true },
  { "reflection_pad3d", "a list of 6", ones(1, 2, 4, 4, 4), {} },
  { "matrix_power", "out of range", ones(2, 2), -0x7fffffffffffffffLL - 1 },
  { "repeat_interleave", "repeats", torch.tensor { 1000000, -999998 }, { output_size = 2 } },
  { "repeat_interleave", "repeats", ones(2, 3), torch.tensor { 400000, -399996 }, 0,
    { output_size = 4 } },
  { "div", "does not fit", ints({ 40 }, least), ints({ 40 }, -1), { rounding_mode = "trunc" } },
  { "div", "does not fit", torch.tensor({ -2 ^ 31 }):int(), -1, { rounding_mode = "trunc" } },
  { "replication_pad2d", "too large", ones(1, 3, 10, 10), { most, most, most, most } },
  { "replication_pad1d", "too large", ones(1, 1, 2), { most, 1 } },
  { "conv2d", "too large", ones(1, 1, 4, 4), ones(1, 1, 2, 2), nil, { 1, 1 }, { 0, 0 },
    { 2 ^ 40, 1 } },
  { "combinations", "at most 64", ones(1), { r = 2 ^ 31, with_replacement = true } },
}

test("what is near to a refused call is not refused", function()
  local smallest = torch.tensor { 5, least }
  local quotient = smallest:div(torch.tensor { -1, 1 }, { rounding_mode = "trunc" })
  assert(torch.equal(quotient, torch.tensor { -5, least }))
  local wide = torch.tensor({ -2 ^ 31 }):int():div(torch.tensor { -1 }, { rounding_mode = "trunc" })
  assert(wide:item() == 2 ^ 31)
  assert(torch.repeat_interleave(torch.tensor { 2, 0, 1 }, { output_size = 3 }):sum():item() == 2)
end)

for i, case in ipairs(wild) do
  test(("%s refuses wild arguments (%d)"):format(case[1], i), function()
    local arguments = { unpack(case, 3, table.maxn(case)) }
    expect_error(function() torch[case[1]](unpack(arguments, 1, table.maxn(case) - 2)) end, case[2])
  end)
end

test("what a padded target holds behind its length is not looked at", function()
  local loss = torch.ctc_loss(ones(5, 2, 4):log_softmax(-1), torch.tensor { { 1, 2, 99 }, { 3,
    -7, 0 } },
    { 5, 5 }, { 2, 1 })
  assert(loss:isfinite():item())
end)

test("a list of one stands for as many as there are", function()
  local x = torch.randn { 1, 1, 4, 4 }
  assert(torch.equal(torch.max_pool2d(x, { 2 }), torch.max_pool2d(x, { 2, 2 })))
  assert(torch.equal(torch.reflection_pad2d(x, { 1 }), torch.reflection_pad2d(x, { 1, 1, 1, 1 })))
end)

test("a tensor that could not grow does not reach beyond its memory", function()
  local x = ones(4)
  expect_error(function() x:resize_ { 2 ^ 40, 9 } end, "memory")
  assert(x:numel() == 0 or x:sum():item() == 4)
end)

test("a wild class is found under vmap too", function()
  local redco = require "redco"
  expect_error(function()
    redco.vmap(function(t) return torch.ctc_loss(ones(5, 1, 4), t, { 5 }, { 1 })
      end)(torch.tensor { { { 1 } }, { { 9 } } })
  end, "expected 0 to 3")
end)

test("kernels for packed weights, and those behind other operators, are not there", function()
  for _, name in ipairs { "quantized_lstm_cell", "fbgemm_pack_quantized_matrix",
    "mkldnn_rnn_layer", "slow_conv3d", "max_pool2d_with_indices_backward", "unfold_backward",
    "native_layer_norm_backward" } do
    expect_error(function() return torch[name] end, "has no")
  end
end)

testing.finish()
