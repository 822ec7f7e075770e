--- Programs that failed once, made small. They run before the random ones.
local found = {
  -- The first call, whose plan is new, draws the numbers of the later ones.
  "x1 = with_rng(2505, torch.rand_like, shard(randn(1, { 4 }), { dp = 0, mp = 0 }))",
  -- A view that had to be gathered does not see what is written to its base.
  [[
x1 = shard(randn(9669, { 3, 1, 4, 1 }), { dp = 0, mp = 0 }) * 1
x2 = x1:flatten()
x1:masked_fill_(mask(8017, { 3, 1, 4, 1 }), -1.25)]],
  [[
x1 = shard(randn(9625, { 1, 2 }), { dp = 1, mp = 1 }):expm1()
x2 = torch.view_as_complex(x1)
x1:transpose(0, 0):add_(2)]],
  [[
x1 = shard(randn(3996, { 7 }), { dp = 0, mp = 0 }) * 1
x2 = x1[0]
x1:copy_(shard(randn(3, { 7 }), { mp = 0 }))]],
  [[
x1 = shard(randn(7969, { 6, 4 }), { dp = 1 })
x2 = x1:as_strided({ 24 }, { 1 })
x1[mask(2736, { 6, 4 })] = 0]],
  -- Sums to come, counted, split or reduced twice.
  "x1 = terms(randn(7814, { 2 }), { dp = \"sum\", mp = \"sum\" }):count_nonzero(0)",
  [[
x1 = shard(randn(1858, { 2, 4 }), { dp = 1, mp = 1 })
x2 = torch.einsum('ij,ij->i', { x1, x1 })
x3 = unpack(torch.unsafe_split(x2, 3, 0))
x4 = torch.tile(x3, { 2 })]],
  [[
x1 = shard(randn(8463, { 1, 1, 2 }), { dp = "partial", mp = "partial" }):requires_grad_()
x2 = unpack(torch.unsafe_chunk(x1, 1, 2))
x3 = torch.fmin(x2, randn(3456, { 2 }))
loss = 0
loss = loss + term(x1, 0.6)
gx1 = grads(loss, { x1 })]],
  -- NaN over a split dimension.
  [[
x1 = shard(special(7223, { 3, 3, 4 }), { dp = 1, mp = 2 })
x2 = vmap(function(r) return r:amax() end)(x1)]],
  -- Errors on sharded tensors that plain tensors do not raise.
  "x1 = torch.max_pool1d(shard(randn(8807, { 7, 2 }), {}), 2)",
  "x1 = torch.view_as_complex(shard(randn(8021, { 2, 2 }), { dp = 1, mp = 1 }))",
  [[
x1 = shard(randn(3992, { 2, 2 }), { dp = 0 })
x2 = torch.linear(x1, shard(randn(5418, { 1, 2 }), { dp = 1, mp = 1 }))]],
  [[
x1 = shard(randn(1834, { 2, 2 }), { dp = 0, mp = 1 })[{ '...', 0 }]
x2 = torch.layer_norm(x1, { 2 })]],
  [[
x1 = randn(1216, { 6 }, "bfloat16")
x2 = shard(randn(1311, { 2, 6, 2 }, "bfloat16"), { dp = 0, mp = 2 })
x3 = torch.batch_norm(x2, x1, x1, nil, nil, true, 0.1, 1e-5, false)]],
  [[
x1 = shard(randn(1869, { 4, 2, 3 }, "float32"), { dp = 1, mp = 2 }):requires_grad_()
x2 = torch.cross_entropy_loss(x1, shard(ints(1806, { 4, 3 }, 2), { dp = 1 }), nil, 0, 1, 0.1)
loss = 0
loss = loss + term(x2, 0.6)
gx1 = grads(loss, { x1 })]],
  "x1 = torch.std_mean(shard(randn(1963, { 0, 0 }), { dp = 0 }))",
  "x1 = shard(randn(1, { 3 }), { dp = 0, mp = 0 }):view { 3, 1, 3 }",
  -- Strides or errors that are not the same on all processes: parts of 0 or 1 elements.
  [[
x1 = shard(randn(8175, { 6, 3 }), { dp = 1, mp = 1 }):permute { 1, 0 }
x2 = unpack(torch._foreach_mul({ x1, x1 }, 0.5))]],
  "x1 = shard(randn(2749, { 3, 3 }), { dp = 0, mp = 1 }):transpose(0, 1) * 1",
  [[
x1 = shard(randn(4846, { 3, 1, 1, 5 }), { dp = 1, mp = 1 }):requires_grad_()
x2 = x1 * 1
x2:transpose(3, 1):add_(3.5)
loss = 0
loss = loss + term(x2, 0.4)
gx1 = grads(loss, { x1 })]],
  [[
x1 = shard(randn(5303, { 7, 1, 7 }), { dp = 1, mp = 1 }):requires_grad_()
x2 = x1:permute { 2, 0, 1 }
loss = 0
loss = loss + term(x2, 0.4)
gx1 = grads(loss, { x1 })]],
  -- A view that was gathered has other strides than plain: autograd makes it anew from its base.
  [[
x1 = shard(randn(5, { 8, 2 }), { dp = 1, mp = 1 }):requires_grad_()
x2 = x1 * 1
x3 = x2:select(1, 0)
x2:transpose_(0, 0)
loss = 0
loss = loss + term(x3, 0.4)
gx1 = grads(loss, { x1 })]],
  [[
x1 = shard(randn(239, { 7, 7 }), { dp = 1, mp = 1 }):requires_grad_()
x2 = x1 * 1
x3 = x2:diagonal()
x2:expand { 7, 7 }:mul_(3.5)
loss = 0
loss = loss + term(x3, 0.3)
gx1 = grads(loss, { x1 })]],
  -- contiguous() is the tensor itself on one process and a copy on another.
  [[
x1 = shard(randn(3, { 3, 5, 2 }), { dp = 0, mp = 0 })
x2 = x1:transpose(0, 1) * 1
x2:contiguous():mul_(2)]],
  -- Terms of one sum in different memory orders.
  [[
x1 = randn(1, { 3, 6, 4 })
x2 = randn(2, { 4, 4 }):requires_grad_()
x3 = shard(randn(3, { 8, 6 }), { dp = 0, mp = 0 }):requires_grad_()
x4 = shard(randn(4, { 6, 8 }), { dp = 1, mp = 1 }):requires_grad_()
x5 = torch.linear(x1, x2):tanh()
x6 = torch.linear(torch.linear(x5:transpose(-1, -2), x3):tanh(), x4):transpose(-1, -2)
x7 = x5 + x6
loss = 0
loss = loss + total(x7, 0.4)
gx2, gx3, gx4 = grads(loss, { x2, x3, x4 })]],
  -- Cached plans of other indices.
  [[
x1 = shard(randn(7, { 4, 4 }), { dp = 0, mp = 0 })
x2 = x1[torch.tensor { 2, 0 }]
x3 = x1[{ {}, torch.tensor { 2, 0 } }] ]],
  -- Infinity times 0, and nothing to take the mean or an extreme of.
  [[
x1 = shard(special(1, { 8 }), { dp = 0, mp = 0 })
x2, x3 = unpack(torch.var_mean(x1))]],
  "x1 = shard(randn(1, { 0, 0, 1, 0 }), { dp = 3, mp = 3 }):min()",
  "x1 = torch.aminmax(shard(randn(1, { 0, 3 }), { dp = 0, mp = 0 }))",
  [[
x1 = shard(randn(1, { 4, 6 }), { dp = 1, mp = 1 })
x3 = torch.tensor { 0 / 0, 1, 2, 1, 1, math.huge }
x2 = torch.cross_entropy_loss(x1, ints(2, { 4 }, 5), x3)]],
  -- A write to an expanded view that had to be gathered reaches its base.
  [[
x1 = shard(randn(3415, { 1 }), { dp = 0, mp = 0 }) * 1
x1:expand { 1, 2 }:fill_(-1.25)]],
  -- Parts that are not one piece of memory, and kernels that take them for one.
  [[
x1 = shard(randn(3660, { 4, 4 }), { dp = 0, mp = 0 }):requires_grad_()
x2 = shard(randn(3860, { 4 }), { dp = { dim = 0, block = 2 } })
x3 = torch.batch_norm(x1, x2, nil, nil, nil, true, 0.1, 1e-5, false)
loss = 0
loss = loss + term(x3, 0.7)
gx1 = grads(loss, { x1 })]],
  [[
x1 = shard(randn(3660, { 4, 4 }), { dp = 0, mp = 0 }):requires_grad_()
x2 = shard(randn(3860, { 4 }), { mp = { dim = 0, block = 2 } })
x3 = torch.batch_norm(x1, x2, nil, nil, nil, true, 0.1, 1e-5, false)
loss = 0
loss = loss + term(x3, 0.7)
gx1 = grads(loss, { x1 })]],
  -- One answer on every process.
  [[
x1 = shard(randn(3277, { 4 }, "float32"), { mp = { dim = 0, block = 2 } })
x2 = x1 * torch.tensor { 1, 1, 1, 2 }
x3 = torch.equal(x1, x2) and x1 * 1 or x1 * 2]],
  -- Results that a kernel keeps for backward, cut in parts.
  [[
x1 = randn(5321, { 2, 2, 2 }):requires_grad_()
x2 = torch.layer_norm(x1, { 2 })
x3 = shard(randn(1805, { 2, 2, 2 }), { mp = 1 })
x4 = torch.scaled_dot_product_attention(x2, x2, x3, { is_causal = true })
loss = term(x4, 0.3)
gx1 = grads(loss, { x1 })]],
  [[
x1 = shard(randn(3167, { 4, 6, 2 }, "bfloat16"), { dp = 0, mp = 0 }):requires_grad_()
x2 = shard(randn(8370, { 6 }, "bfloat16"), { dp = 0, mp = 0 }):requires_grad_()
x3 = torch.batch_norm(x1, x2, x2, nil, nil, true, 0.1, 1e-5, false)
loss = term(x3, 0.4)
gx1, gx2 = grads(loss, { x1, x2 })
second = total(gx1, 0.5)
hx1, hx2 = grads(second, { x1, x2 })]],
  -- Some process holds no element.
  [[
x1 = shard(randn(5568, { 2, 1 }), { dp = 1, mp = 1 })
x2 = torch.cat({ x1, x1 }, -1)
x3 = torch.linalg.vector_norm(x2, inf)
x4 = torch.linalg.vector_norm(x2, -inf)]],
  -- Operators of which LibTorch knows no strides beforehand.
  [[
x1 = shard(randn(5148, { 2, 2 }), { dp = 1, mp = 1 }):t()
x2 = x1:index_select(1, torch.tensor { 1, 0 })
x3 = x1:roll(1, 0)
x4 = torch.rand_like(x1) * 0]],
  -- A view without being marked as one.
  [[
x1 = shard(randn(8528, { 2, 2 }), { dp = 0, mp = 1 })
x2 = torch._unsafe_view(x1, { 2, 2 })
x3 = torch._unsafe_view(x1:t():t(), { 4 })
x2:fill_(0.5)
x3[0] = 2]],
  -- Written through an expanded view of a sum to come.
  [[
x1 = terms(randn(9629, { 4, 7 }), { dp = "sum", mp = "sum" }) * 1
x1:expand { 3, 4, 7 }:fill_(0.5)]],
  -- A moved tensor has other strides in a dimension of one element.
  [[
x1 = randn(52, { 1, 6 })
x2 = terms(randn(10, { 6 }), { dp = "sum", mp = "sum" })
x3, x4 = unpack(x2:expand { 3, 6 }:tensor_split(3, 0))
x5 = x1:add(x4, { alpha = 3.5 })]],
  -- A convolution without input channels: its result has no channels, its bias has.
  [[
x1 = randn(10, { 2, 0, 2 }):requires_grad_()
x2 = shard(randn(109, { 3, 0, 2 }), { mp = 0, dp = 2 }):requires_grad_()
x3 = terms(randn(2308, { 3 }), { dp = "sum", mp = "sum" }):requires_grad_()
x4 = torch.conv1d(x1, x2, x3)
loss = total(x4, 0.6) + term(x3, 0.5)
gx1, gx2, gx3 = grads(loss, { x1, x2, x3 })]],
  -- Drawn row-major, whatever the order of the probabilities.
  [[
x1 = shard(randn(8605, { 2, 2, 2, 2 }), { dp = 2, mp = 1 })
x2 = vmap(function(r) return r:transpose(0, -1) end)(x1)
x3 = with_rng(1737, torch.bernoulli, x2:sigmoid())]],
  -- Written at different places of what is expanded.
  [[
x1 = shard(randn(442, { 2, 1 }), { dp = 0, mp = 0 })
x1:expand { 2, 3 }:diagonal():add_(2)
x2 = shard(randn(443, { 1, 2 }), { dp = 1, mp = 1 })
x2:expand { 3, 2 }:diagonal():mul_(2)]],
  -- Of a sum, taken anew after a write: its new memory holds terms again.
  [[
x1 = shard(randn(1034, { 3, 3 }), { dp = "partial", mp = 0 })
x2 = shard(randn(1035, { 3, 3 }), { mp = "partial", dp = 0 })
x3 = x1[{ { 1, 2 } }]
x4 = x2[{ { 1, 2 } }]
no_grad(function() x3[{ 'newaxis', {} }]:add_(0.5) end)
no_grad(function() x4[{ 'newaxis', {} }]:add_(0.5) end)]],
  -- Backward compares the result with the argument: a sum must have the same bits in both.
  [[
x1 = terms(randn(898, { 2, 2, 4 }, "float32"), { dp = "sum", mp = "sum" }):requires_grad_()
x2 = shard(ints(618, { 2, 2, 4 }, 2), { dp = 1, mp = 1 })
x3 = shard(randn(8965, { 2, 2, 4 }, "float32"), { dp = 0, mp = 1 })
x4 = x1:scatter_reduce(-3, x2, x3, 'amax')
x5 = x1:amax(1)
loss = term(x1, 0.4) + term(x4, 0.6) + term(x5, 0.5)
gx1 = grads(loss, { x1 })]],
  -- Row-major where nothing is differentiated.
  [[
x1 = vmap(function(r) return r:transpose(0, -1) end)(shard(randn(2529, { 4, 7, 4 }), { dp = 0 }))
x2 = torch.max_pool1d(x1, 2)]],
  -- A write to nothing.
  [[
x1 = shard(randn(852, { 4, 4 }), {}):requires_grad_()
x2, x3 = unpack(torch.unsafe_split(x1, 1, -1))
x3:slice(1, 0, 0, 2):tanh_()
loss = total(x3, 0.3)
gx1 = grads(loss, { x1 })]],
  -- Random numbers in the strides of a part; conv_transpose1d chooses its layout by them.
  [[
x1 = shard(randn(2789, { 1, 3, 1 }), { mp = 2 }) * 1
x1:swapaxes_(0, 2)
x2 = with_rng(5391, torch.rand_like, x1)
x3 = torch.conv_transpose1d(x2, randn(1154, { 3, 3, 2 }))]],
  -- LibTorch's backward takes a strided weight for a contiguous one.
  [[
x1 = shard(randn(4629, { 4, 4 }), { dp = 0 }):requires_grad_()
x2 = torch.batch_norm(x1, x1:select(1, 0), nil, nil, nil, true, 0.1, 1e-5, false)
loss = term(x2, 0.7)
gx1 = grads(loss, { x1 })]],
  -- Backward writes to an expanded gradient: LibTorch refuses that where the part has elements.
  [[
x1 = shard(randn(5055, { 2, 7 }), { mp = 0 }):requires_grad_()
x2 = torch.cross_entropy_loss(x1, shard(ints(6460, { 2 }, 7), { dp = 0, mp = 0 }), nil, 0)
x3 = torch.cat({ x2, x2:narrow(-1, 0, 1) }, -1)
x4 = unpack(torch.broadcast_tensors { x2, randn(8842, { 2, 7, 2, 2 }) })
x4:zero_()
loss = term(x3, 0.4) + term(x4, 0.5)
gx1 = grads(loss, { x1 })]],
  -- Two gradients in one storage, each redistributed.
  [[
x1 = shard(randn(1680, { 5, 6, 4 }, "float32"), { dp = 2, mp = { dim = 1, block = 3 } })
x2 = randn(504, { 6 }, "float32"):requires_grad_()
x3 = shard(randn(1368, { 6 }, "float32"), { dp = { dim = 0, block = 3 } }):requires_grad_()
x4 = torch.batch_norm(x1, x2, x3, nil, nil, true, 0.1, 1e-5, false)
x5 = torch.stack({ x2, x3 }, 1)
loss = term(x4, 0.6) + term(x5, 0.3)
gx2, gx3 = grads(loss, { x2, x3 })]],
  -- LibTorch's backward ignores the strides of the mean and the deviation.
  [[
x1 = shard(randn(9518, { 3, 3, 3 }), { dp = 1 })
x2 = shard(randn(514, { 3, 3, 3 }), { mp = 1 }):requires_grad_()
x3 = x1 * torch.layer_norm(x2, { 3 })
loss = term(x3, 0.4)
gx2 = grads(loss, { x2 })]],
  -- A write to a view by strides of a tensor that is not dense in memory.
  [[
x1 = shard(randn(7736, { 4, 5, 5 }), { dp = 2, mp = 2 }):requires_grad_()
x2 = x1[{ 'newaxis', { 1, 4 } }]:as_strided({ 15 }, { 1 })
x3 = x1[{ {}, { 1, 3 } }]:as_strided({ 4, 3 }, { 25, 1 })
no_grad(function() x2:add_(0.5) end)
no_grad(function() x3:mul_(2) end)
loss = term(x1, 0.4)]],
  -- A write by index to a tensor of which a process holds nothing, with strides of 0.
  [[
x1 = shard(randn(2145, { 7, 1, 1, 1 }), { dp = 1 }):requires_grad_()
x2 = x1 * 1
x2:scatter_(1, shard(ints(6987, { 7, 1, 1, 1 }, 1), { mp = 3 }), 0)]],
  -- A copy of an expanded tensor to itself.
  [[
x1 = randn(4110, { 7, 5, 7 }, "bfloat16"):requires_grad_()
x2 = x1:take(shard(torch.tensor { 158, 95, 166, 102 }, {}))
x3, x4 = unpack(torch.meshgrid({ x2, x2 }, { indexing = 'ij' }))
x4:copy_(x4)]],
  -- A copy of an expanded tensor to another name of the same elements.
  [[
x1 = shard(randn(4111, { 1, 4 }), { mp = 1 }):requires_grad_()
x2 = (x1 * 1):expand { 3, 4 }
x3 = x2:squeeze()
no_grad(function() x2:copy_(x3) end)
x4 = x2:detach():view { 3, 4 }
x4:copy_(x2:detach())
loss = term(x2, 0.4)]],
  -- A write by index to an expanded tensor of which some processes hold nothing.
  [[
x1 = shard(randn(4717, { 1, 3, 1 }), { dp = 0, mp = 0 }) * 1
x2 = x1:expand { 2, 3, 4 }
x1:expand { 1, 3, 4 }[{ shard(ints(9, { 1 }, 1), { dp = 0 }), {}, ints(9, { 2 }, 4) }] = -1.25
x1:expand { 1, 3, 4 }:index_fill_(0, ints(9, { 1 }, 1), 3)]],
  -- Classes of a loss that a bias or weights split in blocks: a process holds several ranges.
  [[
x1 = randn(5543, { 9, 6 }):requires_grad_()
x2 = shard(randn(4562, { 6 }), { mp = { dim = 0, block = 3 } }):requires_grad_()
x3 = linear_cross_entropy(x1, randn(9335, { 6, 6 }), ints(8737, { 9 }, 6), { bias = x2 })
loss = term(x3, 0.7)
gx1, gx2 = grads(loss, { x1, x2 })]],
  [[
x1 = randn(5544, { 9, 6 }):requires_grad_()
x2 = shard(randn(4562, { 6 }):abs(), { mp = { dim = 0, block = 3 } })
x3 = torch.nll_loss(x1:log_softmax(1), ints(8737, { 9 }, 6), x2)
loss = term(x3, 0.7)
gx1 = grads(loss, { x1 })]],
  -- A whole copy of a tensor, whose result gets no gradient.
  [[
x1 = shard(randn(2263, { 5, 7 }), { }):requires_grad_()
x2 = randn(1534, { 5, 7 }):requires_grad_()
x3, x4 = unpack(torch._foreach_mul({ x1:full():fill_(0.5), x2 }, 0.5))
loss = term(x4, 0.6)
gx1, gx2 = grads(loss, { x1, x2 })]],
  -- A product with chosen weights of which a process holds no columns.
  [[
x1 = shard(randn(3489, { 1, 4 }), { dp = 0, mp = 0 }):requires_grad_()
x2 = shard(randn(9653, { 1, 4 }), { dp = 1, mp = 1 }):requires_grad_()
x3 = grouped_linear(x1, shard(ints(1526, { 1, 3 }, 3), { dp = 0 }), { x1, x2, x1 })
loss = total(x3, 0.4)
gx1, gx2 = grads(loss, { x1, x2 })]],
  -- LibTorch's backward of batch_norm for sizes of 1 with strides of either memory format.
  [[
x1 = randn(2632, { 6, 1 }):requires_grad_()
x2 = shard(randn(661, { 4, 1, 6, 4 }), { mp = { dim = 3, block = 2 } }):requires_grad_()
x3 = torch.fmin(x1, x2):transpose(1, 3)
x4 = torch.batch_norm(x3, randn(1665, { 4 }), nil, nil, nil, true, 0.1, 1e-5, false)
loss = term(x4, 0.4)
gx1, gx2 = grads(loss, { x1, x2 })
hx1, hx2 = grads(term(gx1, 0.4), { x1, x2 })]],
  -- Blocks over mp of a dimension of which the process has no part over dp.
  [[
x1 = shard(randn(1149, { 4 }, "float32"), { mp = { dim = 0, block = { 1, 3 } } }):requires_grad_()
x2 = x1:matmul(shard(randn(7475, { 4, 2 }, "float32"), { dp = 0, mp = 0 }))
x3 = shard(randn(3426, { 1, 4 }, "float32"), { mp = { dim = 1, block = { 2, 2 } } }):requires_grad_()
x4 = shard(randn(2171, { 1 }, "float32"), { dp = 0, mp = 0 }):requires_grad_()
x5 = torch.linear(x1, x3, x4)
loss = total(x1, 0.4) + term(x2, 0.5) + term(x4, 0.6) + term(x5, 0.7)
gx1, gx3, gx4 = grads(loss, { x1, x3, x4 })
second = term(gx1, 0.4) + total(gx3, 0.5) + term(gx4, 0.6)
hx1, hx3, hx4 = grads(second, { x1, x3, x4 })]],
  -- Strides of attention with heads of one element, whose examples are split.
  [[
x1 = shard(randn(2962, { 1, 6, 2, 1 }), { dp = 2 }):requires_grad_()
x2 = vmap(function(r) return r:clone():mul_(2) end, { in_dims = -2 })(x1)
x3 = torch.scaled_dot_product_attention(x2, x2, x2)]],
  -- A sum over both dimensions of which a view was read before: the same bits in either order.
  [[
x1 = randn(362, { 2, 6 }, "bfloat16")
x2 = shard(randn(3915, { 6, 2 }, "bfloat16"), { mp = 0 }):requires_grad_()
x3 = shard(randn(116, { 2, 6 }, "bfloat16"), { dp = 1 }):requires_grad_()
x4 = (function(h) return h + torch.linear(torch.linear(h:transpose(-1, -2), x2):tanh(), x3):transpose(-1, -2) end)(x1:tanh())
x5 = vmap(function(r) return (r * r):sum() end, { in_dims = 0 })(x2)
x6 = x4:unfold(-1, 1, 3)
x7 = x6:scatter_reduce(-3, ints(7513, { 2, 2, 1 }, 2), randn(9832, { 2, 2, 1 }, "bfloat16"), 'amax')
x8 = gradient(function(p) return (p:pow(2) * x4):mean() end)(x5)
loss = term(x7, 0.6)
gx2, gx3 = grads(loss, { x2, x3 })]],
  -- Written to in place: with sequence_parallel, views of a sum are split along the sequence.
  [[
x1 = shard(randn(5, { 2, 8, 4 }), { mp = 2 }):requires_grad_()
x2 = shard(randn(6, { 6, 4 }), { mp = 1 }):requires_grad_()
x3 = torch.linear(x1, x2):add_(randn(7, { 6 }))
x4 = torch.linear(x1[{ {}, { 0, 8, 2 } }], x2, randn(7, { 6 }))
x5 = torch.linear(x1, x2)
x5:select(1, 0):zero_()
x6 = torch.linear(x1:reshape { 16, 4 }, x2)
x7 = x6:view { 2, 8, 6 }
x7:tanh_()
x8 = x6 * 2
x6:mul_(0.5)
x9 = x7 + 1
loss = term(x3, 0.3) + term(x4, 0.4) + term(x5, 0.5) + term(x8, 0.6) + term(x9, 0.7)
gx1, gx2 = grads(loss, { x1, x2 })]],
  -- The order in memory of an expanded tensor's copy.
  [[
x1 = shard(randn(8, { 3, 3 }), {}):expand { 3, 3, 3 }
x2 = x1:full():add_(x1)
x3 = shard(x1, { mp = 1 }):mul_(2)]],
  -- A copy in the placement that the tensor has.
  [[
x1 = shard(randn(8, { 4, 3 }), { dp = 0 }):requires_grad_()
x2 = x1 * 1
x3 = shard(x2, { dp = 0 })
x4 = shard(x2, { dp = 0, mp = 1 })
x5 = x2:full()
x3:relu_()
x4:mul_(2)
x5:tanh_()
loss = term(x2, 0.3) + term(x3, 0.4) + term(x4, 0.5) + term(x5, 0.6)
gx1 = grads(loss, { x1 })]],
  -- A gradient whose positions are split over data and model shards.
  [[
x1 = randn(4562, { 2, 6, 4 }):requires_grad_()
x2 = shard(randn(2160, { 6, 6 }), { dp = 0, mp = 0 }):requires_grad_()
x3 = torch.linear(torch.linear(x1:transpose(1, 2), x2), x2)
loss = 0
loss = loss + term(x1 + x3:transpose(1, 2), 0.4)
gx1, gx2 = grads(loss, { x1, x2 })]],
}

for _, program in ipairs(require "programs.found_in_training") do found[#found + 1] = program end

return found
