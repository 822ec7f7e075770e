-- Calls that LibTorch's kernels would read or write outside of a tensor for: each is an error.
local testing = require "testing"
local torch = require "redco.torch"

local test, expect_error = testing.test, testing.expect_error

local function ints(sizes, value) return torch.full(sizes, value, { dtype = "int64" }) end
local function ones(...) return torch.ones { ... } end

-- The operator, a part of the message, its arguments.
local wild = {
  { "ctc_loss", "expected 0 to 19, got 20", ones(50, 1, 20):log_softmax(-1), torch.tensor { { 1,
    20, 3 } },
    torch.tensor { 50 }, torch.tensor { 3 } },
  { "ctc_loss", "blank", ones(5, 1, 4), torch.tensor { { 1 } }, { 5 }, { 1 }, -1 },
  { "ctc_loss", "target_lengths", ones(5, 2, 4), torch.tensor { 1, 2, 3 }, { 5, 5 }, { 2, 2 } },
  { "adaptive_max_pool2d_backward", "indices", ones(1, 1, 2, 2), ones(1, 1, 4, 4), ints({ 1, 1,
    2, 2 }, 16) },
  { "max_pool2d_with_indices_backward", "indices", ones(1, 1, 2, 2), ones(1, 1, 4, 4), { 2, 2 },
    { 2, 2 },
    { 0, 0 }, { 1, 1 }, false, ints({ 1, 1, 2, 2 }, -1) },
  { "max_pool3d_with_indices_backward", "indices", ones(1, 1, 2, 2, 2), ones(1, 1, 4, 4, 4), { 2,
    2, 2 },
    { 2, 2, 2 }, { 0, 0, 0 }, { 1, 1, 1 }, false, ints({ 1, 1, 2, 2, 2 }, 64) },
  { "avg_pool3d_backward", "grad_output", ones(1, 2, 5, 5, 5), ones(3, 2, 4, 4, 4), { 2, 2, 2 },
    { 1, 1, 1 }, { 1, 1, 1 }, true, false, 2 },
  { "fractional_max_pool2d_backward", "output_size", ones(1, 1, 2, 2), ones(1, 1, 4, 4), { 2,
    2 }, {},
    ints({ 1, 1, 2, 2 }, 0) },
  { "linalg_ldl_solve", "pivots", torch.eye(4), ints({ 4 }, 5):int(), ones(4, 4) },
  { "linalg_ldl_solve", "pivots", torch.eye(3), torch.tensor({ 1, -2, 3 }):int(), ones(3, 3) },
  { "lu_unpack", "LU_pivots", ones(0, 2, 5), ints({ 5 }, 1):int() },
  { "linalg_eigvals", "NaN", torch.full({ 3, 3 }, 0 / 0) },
  { "unfold_backward", "grad_in", ones(2, 2), { 100000 }, 0, 50000, 1 },
  { "segment_reduce", "unsafe", ones(4), "sum", { lengths = torch.tensor { 1000000 },
    unsafe = true } },
  { "sparse_coo_tensor", "size is inconsistent", torch.tensor { { 7 } }, ones(1), { 2 } },
  { "sparse_csr_tensor", "", torch.tensor { 0, 1, 2 }, torch.tensor { 100000000, 5000000 },
    torch.tensor { 1.5, 2.5 }, { 2, 2 } },
  { "native_batch_norm", "weight", ones(3, 5, 4), ones(2), ones(2), ones(2), ones(2), false, 0.1,
    1e-5 },
  { "native_batch_norm_backward", "save_mean", ones(2, 4, 4), ones(2, 4, 4), ones(4), ones(4),
    ones(4), ones(1),
    ones(1), true, 1e-5, { true, true, true } },
  { "native_layer_norm_backward", "mean", ones(2, 4), ones(2, 4), { 4 }, ones(1), ones(1),
    ones(4), ones(4),
    { true, true, true } },
  { "native_group_norm_backward", "mean", ones(2, 4, 4), ones(2, 4, 4), ones(1), ones(1),
    ones(4), 2, 4, 4, 2,
    { true, true, true } },
  { "grid_sampler_2d_backward", "grad_output", ones(1, 1, 100, 100), ones(1, 1, 4, 4), ones(1, 2,
    2, 2), 0, 0,
    false, { true, true } },
  { "scaled_dot_product_attention", "the same length", ones(1, 1, 4, 8), ones(1, 1, 1, 8),
    ones(1, 1, 9999, 8) },
  { "scaled_dot_product_attention", "one head", ones(1, 0, 4, 8), ones(1, 0, 4, 8), ones(1, 0, 4,
    8) },
  { "lstm", "params[1]", ones(1, 1, 4), { ones(1, 1, 8), ones(1, 1, 8) }, { ones(4, 4), ones(4,
    4) }, false, 1,
    0, false, false, true },
  { "reflection_pad3d", "a list of 6", ones(1, 2, 4, 4, 4), {} },
  { "matrix_power", "out of range", ones(2, 2), -0x7fffffffffffffffLL - 1 },
  { "combinations", "at most 64", ones(1), { r = 2 ^ 31, with_replacement = true } },
}

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
    "mkldnn_rnn_layer", "slow_conv3d" } do
    expect_error(function() return torch[name] end, "has no")
  end
end)

testing.finish()
