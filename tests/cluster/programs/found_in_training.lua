--- Programs with parameters and a batch that failed once, made small.
return {
  -- A view that had to be gathered does not see what is written to its base.
  [[
p = { a = randn(9554, { 2 }):requires_grad_() }
b = { x = randn(1956, { 5, 2 }) }
rules = { { 'a', 0 } }
x1 = p.a * 1
x2 = torch.view_as_complex(x1)
x1:div_(2)
loss = 0
loss = loss + term(x2, 0.7)]],
  -- Errors on sharded tensors that plain tensors do not raise.
  [[
p = { a = randn(3648, { 0 }):requires_grad_() }
b = { x = randn(5899, { 3, 3 }) }
rules = { { 'a', 0 } }
x1 = p.a * 1
loss = 0
loss = loss + term(x1, 0.4)]],
  [[
p = { a = randn(9594, { 6, 6 }):requires_grad_() }
b = { x = randn(2607, { 2, 6 }) }
rules = { { 'a', 1 } }
x1 = p.a * 1
x1:index_add_(1, torch.tensor { 3, 5, 3 }, randn(5254, { 6, 3 }))
loss = 0
loss = loss + term(x1, 0.4)]],
  -- Watched for the layout: sizes of -1, and what fails without values.
  [[
p = { a = randn(4123, { 3, 2 }):requires_grad_() }
b = { x = randn(8095, { 2, 3 }) }
rules = { { 'a', 1 } }
x1 = p.a:reshape { -1 }
x2 = p.a:masked_select(mask(4, { 3, 2 }):fill_(1)):narrow(0, 1, 2)
loss = 0
loss = loss + term(x1, 0.4) + term(x2, 0.6)]],
  -- A plan for one tensor given twice is none for two of the same sizes.
  [[
p = { a = randn(3337, { 6, 6 }):requires_grad_() }
b = { x = randn(9353, { 5, 3 }) }
rules = { { 'a', 0 } }
x1 = torch.addmm(randn(1425, { 6 }), p.a, p.a)
loss = 0
loss = loss + term(x1, 0.4)]],
  -- A gradient that is a plain tensor, written with parts: the processes added to it differently.
  [[
p = { a = randn(460, { 1, 5 }):requires_grad_() }
b = { x = randn(5897, { 1, 5 }) }
rules = { { 'a', 1 } }
x1 = vmap(gradient(function(p) return p:tanh():sum() end))(p.a)
x2 = p.a:kthvalue(1, 0)
loss = term(x2, 0.6) + total(x1, 0.7)]],
  -- A converted copy of a parameter that zero 3 stores, written to.
  [[
p = { a = randn(8382, { 6 }):requires_grad_(), b = randn(6395, { 6, 6 }):requires_grad_() }
b = { x = randn(7, { 1, 6 }) }
rules = { { 'a', 0 }, { 'b', 'replicate' } }
x1 = cast(p.a, "float64")
x1:div_(2)
x2 = cast(x1, "float32")
loss = term(torch.linear(x1, p.b), 0.3) + term(x2:cumsum(0), 0.4)]],
  -- A ZeRO-3 parameter that is read, written and read again; its copy; and a view of a copy.
  [[
p = { a = randn(8382, { 3 }):requires_grad_(), b = randn(6395, { 3 }):requires_grad_() }
b = { x = randn(7, { 1, 6 }) }
rules = { { 'a', 'replicate' }, { 'b', 'replicate' } }
x1 = cast(p.a, "float32")
x2 = cast(p.b, "float64")
x3 = p.a:cumsum(0) + p.b:cumsum(0)
no_grad(function() p.a:mul_(0.5) end)
x2:squeeze():tanh_()
loss = total(p.a, 0.4) + term(p.b, 0.3) + term(x1, 0.5) + term(x2, 0.7) + total(x3, 0.6)]],
  -- A loss_fn that changes its batch in place: the pass that finds the layout is repeated.
  [[
p = { a = randn(3451, { 5, 5, 1 }):requires_grad_(), b = randn(8539, { 5, 5, 5 }):requires_grad_() }
b = { x = randn(3685, { 2, 4 }), y = randn(8788, { 2, 5, 1 }) }
rules = { { 'a', 2 }, { 'b', 2 } }
x1 = p.a
x2 = b.y
x3 = p.a * 1
x2:unsqueeze_(1)
x4 = torch.conv2d(x2, randn(8056, { 1, 1, 2, 2 }), nil, 3, 1)
x5 = x3:view { -1 }
loss = term(x1, 0.4)]],
  -- With ZeRO 3, parameters that were converted twice, and to integers beside a matrix product.
  [[
p = { a = randn(2866, { 7, 2, 7 }):requires_grad_(), b = randn(669, { 7, 2, 7 }):requires_grad_(), c = randn(8776, { 7, 2, 7 }):requires_grad_() }
b = { x = randn(7698, { 2, 2 }), y = randn(6483, { 2, 2, 7 }) }
rules = { { 'a', 2 }, { 'b', 0 }, { 'c', 0 } }
x1 = p.a:bool():double():matmul(randn(6444, { 7, 7 }))
x2 = p.b:long():double():matmul(randn(6444, { 7, 7 }))
x3 = p.c:to("float32"):double():matmul(randn(6444, { 7, 7 })):ceil()
x4 = (p.c * 300):to("bfloat16"):matmul(randn(6444, { 7, 7 }, "bfloat16"))
loss = total(p.a, 0.4)]],
  -- A search for layouts that fails on some parts only: one without classes.
  [[
p = { a = randn(6902, { 2, 2, 2 }):requires_grad_(), b = randn(3597, { 2, 2 }):requires_grad_() }
b = { x = randn(630, { 2, 1, 1 }) }
rules = { { 'a', 2 } }
x1 = p.a * 1
x2 = shard(b.x, { dp = 2, mp = 1 }):fill_(0)
x3 = torch.cross_entropy_loss(x2, ints(6991, { 2, 1 }, 1), torch.arange(1, 2, { dtype = x2.dtype }), 0)
loss = term(x1, 0.4) + term(p.b, 0.5)]],
  -- The pass that finds the stages of a pipeline: whole copies beside plain tensors.
  [[
p = { a = randn(2558, { 5, 5, 5 }):requires_grad_(), b = randn(4171, { 1, 1 }):requires_grad_() }
b = { x = randn(8040, { 3, 5 }), y = randn(2729, { 3, 1 }) }
rules = { { 'a', 'replicate' } }
x1 = p.a * 1
x2 = torch.conv1d(x1:full(), randn(7876, { 5, 5, 3 }), nil, 1, 1)
x3 = (b.x * 1):full():add_(randn(7877, { 1, 5 }))
x4 = torch.scaled_dot_product_attention(x1:full(), x1, x1, { is_causal = true })
loss = term(x1, 0.4) + term(p.b, 0.5)]],
  -- A copy of a parameter, which one stage has, in another placement.
  [[
p = { a = randn(5432, { 2, 2 }):requires_grad_(), c = randn(4753, { 2, 2 }):requires_grad_() }
b = { x = randn(5717, { 5, 2 }) }
rules = { { 'c', 0 } }
x1 = shard(p.c, { dp = 1 }):mul_(3.5)
x2 = p.a * 1
loss = term(x1, 0.4)
loss = loss + term(x2, 0.5)]],
  -- A parameter that is written between its uses: what is computed from it is sent again.
  [[
p = { a = randn(4609, { 5, 5 }):requires_grad_(), c = randn(6494, { 5, 5 }):requires_grad_() }
b = { x = randn(27, { 3, 5 }) }
rules = { { 'a', 1 }, { 'c', 0 } }
x1 = p.c
x2, x3 = x1:median(0)
no_grad(function() p.c:unsqueeze(0):mul_(0.5) end)
x4 = block(function(h) return torch.linear(h, p.a):tanh() end, x2)
loss = 0
loss = loss + term(x2, 0.4)]],
  -- Blocks that run again begin on the stage where they began at first.
  [[
p = { a = randn(663, { }):requires_grad_(), b = randn(9331, { 2, 2 }):requires_grad_(), c = randn(6641, { }):requires_grad_() }
b = { x = randn(8398, { 3, 1 }), y = randn(9742, { 3, 2, 1 }) }
rules = { { 'a', 'replicate' }, { 'b', 'replicate' }, { 'c', 'replicate' } }
x1 = p.a
x2 = p.b
x7 = p.a * 1
x9 = randn(9251, { 2 })
x13 = block(function(h) return torch.linear(h, x2, x9):relu_() end, x2)
loss = 0
loss = loss + term(x1, 0.4)]],
  -- A plain gradient of a parameter that one stage has.
  [[
p = { a = randn(6558, { 1, 4, 4 }, "float32"):requires_grad_(), b = randn(9272, { 4, 1 }, "float32"):requires_grad_() }
b = { x = randn(1682, { 5, 4 }, "float32") }
rules = { { 'a', 0 }, compute_dtype = "bfloat16" }
x1 = p.b[{ 'newaxis', { 3, 3, 1 } }]
x1:expand { 3, 0, 3 }:add_(0.5)
loss = 0
loss = loss + term(p.a, 0.4)
loss = loss + term(x1, 0.7)]],
  -- Gradients inside of vmap, of a parameter that several stages have.
  [[
p = { a = randn(7866, { 6, 4, 4 }):requires_grad_(), b = randn(7380, { 6, 4, 4 }):requires_grad_() }
b = { x = randn(7734, { 4, 6 }) }
rules = { { 'a', 'replicate' }, { 'b', 'replicate' } }
x1 = p.a
x2 = p.b
x3 = vmap(gradient(function(p) return p:logsumexp({ 0 }):sum() end))(x2)
x4 = x3:bmm(randn(4114, { 6, 4, 4 }))
x5 = x4 * x1
x6 = vmap(function(r) return torch.linear(r, randn(9630, { 6, 4 })):tanh() end)(x4)
loss = 0
loss = loss + term(x3, 0.3)
loss = loss + term(x5, 0.4)]],
  -- A write through a view of a parameter that is cast, on the stage that has it.
  [[
p = { a = randn(8270, { 7, 3, 7 }, "float32"):requires_grad_(), b = randn(3072, { 1 }, "float32"):requires_grad_() }
b = { x = randn(8794, { 4, 7 }, "float32") }
rules = { { 'a', 1 }, { 'b', 'replicate' }, compute_dtype = "float64" }
x1 = p.a
x1:squeeze():tanh_()
loss = 0
loss = loss + term(x1, 0.4)]],
  -- A write, after it was sent, to what another stage reads.
  [[
p = { a = randn(9618, { 1, 5 }):requires_grad_(), b = randn(8654, { 5, 5, 4 }):requires_grad_(), c = randn(9996, { 1, 5 }):requires_grad_() }
b = { x = randn(5402, { 1, 1 }), y = randn(8378, { 1, 5, 5 }) }
rules = { { 'a', 0 }, { 'b', 2 }, { 'c', 1 } }
x1 = p.a
x8 = torch.stack({ p.c, x1 }, 1)
no_grad(function() p.a:squeeze():clamp_(-0.5, 0.5) end)
loss = 0
loss = loss + term(x1, 0.4)
loss = loss + term(x8, 0.7)]],
}
