--- redco.nn
local params = { hidden = nn.Linear(784, 64), out = nn.Linear(64, 10) }
local function classify(p, images)  -- images [batch, 784]
  return nn.linear(p.out, torch.relu(nn.linear(p.hidden, images)))
end
local logits = classify(params, torch.zeros { 32, 784 })
print(logits.shape)  --> torch.Size([32, 10])

--- redco.nn.Conv1d
local params = nn.Conv1d(80, 256, 3)
print(params.weight.shape, params.bias.shape)
--> torch.Size([256, 80, 3])  torch.Size([256])

--- redco.nn.Conv2d
local params = nn.Conv2d(3, 64, 7, { bias = false })
print(params.weight.shape, params.bias)  --> torch.Size([64, 3, 7, 7])  nil

--- redco.nn.Embedding
local params = nn.Embedding(50257, 768, { std = 0.02 })
print(params.weight.shape)  --> torch.Size([50257, 768])

--- redco.nn.GRUCell
local params = nn.GRUCell(16, 32)
print(params.weight_ih.shape, params.bias_hh.shape)
--> torch.Size([96, 16])  torch.Size([96])

--- redco.nn.LSTMCell
local params = nn.LSTMCell(16, 32)
print(params.weight_ih.shape, params.weight_hh.shape)
--> torch.Size([128, 16])  torch.Size([128, 32])

--- redco.nn.LayerNorm
print(nn.LayerNorm(768).weight.shape)       --> torch.Size([768])
print(nn.LayerNorm({ 16, 32 }).bias.shape)  --> torch.Size([16, 32])

--- redco.nn.Linear
local deployer = redco.Deployer { seed = 42, verbose = false }
local params = nn.Linear(64, 10, { generator = deployer:gen_rng() })
print(params.weight.shape, params.bias.shape)
--> torch.Size([10, 64])  torch.Size([10])

--- redco.nn.MLP
local params = nn.MLP { 784, 256, 10 }
print(#params, params[1].weight.shape)  --> 2  torch.Size([256, 784])
local logits = nn.mlp(params, torch.zeros { 32, 784 })
print(logits.shape)  --> torch.Size([32, 10])

--- redco.nn.MultiheadAttention
local params = nn.MultiheadAttention(64)
print(params.q_proj.weight.shape)  --> torch.Size([64, 64])
local x = torch.randn { 2, 10, 64 }  -- [batch, length, embed_dim]
local y = nn.multihead_attention(params, x, { num_heads = 8, causal = true })
print(y.shape)  --> torch.Size([2, 10, 64])

--- redco.nn.RMSNorm
print(nn.RMSNorm(4096).weight.shape)  --> torch.Size([4096])

--- redco.nn.attention
local q = torch.randn { 2, 8, 10, 64 }  -- [batch, heads, length, size]
local k, v = torch.randn { 2, 8, 12, 64 }, torch.randn { 2, 8, 12, 64 }
print(nn.attention(q, k, v).shape)  --> torch.Size([2, 8, 10, 64])
local mask = torch.ones({ 10, 12 }, { dtype = "bool" }):tril(2)
print(nn.attention(q, k, v, { mask = mask }):equal(
  nn.attention(q, k, v, { mask = mask:float():log() })))  --> true

local ids = torch.tensor { { 1, 1, 1, 1, 2, 2, 2, 2, 0, 0 } }
local x = q:narrow(0, 0, 1)
local y = nn.attention(x, x, x, { causal = true, segment_ids = ids })
local second = x:narrow(2, 4, 4)
print(torch.allclose(y:narrow(2, 4, 4),
  nn.attention(second, second, second, { causal = true })))  --> true

--- redco.nn.block
local layers = { nn.Linear(8, 8), nn.Linear(8, 8) }
local function layer(p, x) return nn.linear(p, x):tanh() end
local x = torch.ones { 4, 8 }
for _, p in ipairs(layers) do x = nn.block(layer, p, x) end
print(x.shape)  --> torch.Size([4, 8])

--- redco.nn.conv1d
local params = nn.Conv1d(80, 256, 3)
local x = torch.randn { 4, 80, 100 }  -- [batch, channels, length]
print(nn.conv1d(params, x, { stride = 2, padding = 1 }).shape)
--> torch.Size([4, 256, 50])

--- redco.nn.conv2d
local params = nn.Conv2d(3, 64, 3)
local images = torch.rand { 8, 3, 32, 32 }  -- [batch, in, height, width]
print(nn.conv2d(params, images, { padding = "same" }).shape)
--> torch.Size([8, 64, 32, 32])

--- redco.nn.cross_entropy
local logits = torch.tensor { { 2, 0.5 }, { 0, 3 }, { 1, 1 } }
local labels = torch.tensor { 0, 1, -100 }  -- the last one does not count
print(nn.cross_entropy(logits, labels))  --> tensor(0.1250)  tensor(2)

--- redco.nn.dropout
local x, rng = torch.ones { 2, 6 }, redco.Rng(0)
print(nn.dropout(x, 0.5, { train = true, rng = rng }))
--> tensor([[2., 2., 0., 0., 2., 0.],
-->         [2., 0., 0., 0., 0., 0.]])

--- redco.nn.embedding
local params = nn.Embedding(1000, 16)
local ids = torch.tensor { { 5, 7, 9 }, { 1, 2, 0 } }
print(nn.embedding(params, ids).shape)  --> torch.Size([2, 3, 16])

--- redco.nn.silu_mul
local gate, up = torch.randn { 2, 4 }, torch.randn { 2, 4 }
print(torch.allclose(nn.silu_mul(gate, up), torch.silu(gate) * up))  --> true

--- redco.nn.apply_rotary_emb
local steps = torch.pow(10000, torch.arange(0, 64, 2):float() / -64)
local angles = torch.arange(128):float():unsqueeze(1) * steps
local q = torch.randn { 2, 8, 128, 64 }
local turned = nn.apply_rotary_emb(q, angles:cos(), angles:sin())
print(turned.shape)  --> torch.Size([2, 8, 128, 64])
print(turned[0][0][0] == q[0][0][0])  --> true

--- redco.nn.grouped_linear
local weights = {}
for i = 1, 8 do weights[i] = torch.randn { 16, 32 } end
local x, logits = torch.randn { 5, 32 }, torch.randn { 5, 8 }
local _, numbers = logits:topk(2, -1)
local y = nn.grouped_linear(x, numbers, weights)
print(y.shape)  --> torch.Size([5, 2, 16])

--- redco.nn.gru_cell
local params, h = nn.GRUCell(16, 32), torch.zeros { 4, 32 }
local inputs = torch.randn { 10, 4, 16 }  -- [length, batch, size]
for t = 0, 9 do h = nn.gru_cell(params, inputs[t], h) end
print(h.shape)  --> torch.Size([4, 32])

--- redco.nn.layer_norm
local x = torch.tensor { { 1, 2, 3 }, { 10, 20, 30 } }:float()
print(nn.layer_norm(nn.LayerNorm(3), x))
--> tensor([[-1.2247,  0.0000,  1.2247],
-->         [-1.2247,  0.0000,  1.2247]])

--- redco.nn.linear
local params = nn.Linear(64, 10)
local rows, sequences = torch.zeros { 32, 64 }, torch.zeros { 2, 5, 64 }
print(nn.linear(params, rows).shape)       --> torch.Size([32, 10])
print(nn.linear(params, sequences).shape)  --> torch.Size([2, 5, 10])

--- redco.nn.linear_cross_entropy
local hidden = torch.randn { 2, 16, 64 }  -- [batch, length, size]
local embedding = nn.Embedding(32000, 64)
local labels = torch.randint(0, 32000, { 2, 16 })
local loss, count = nn.linear_cross_entropy(hidden, embedding.weight, labels)
print(loss.shape, count)  --> torch.Size([])  tensor(32)

--- redco.nn.linear_logprobs
local hidden = torch.randn { 2, 16, 64 }  -- [batch, length, size]
local embedding = nn.Embedding(32000, 64)
local labels = torch.randint(0, 32000, { 2, 16 })
local logprobs = nn.linear_logprobs(hidden, embedding.weight, labels)
print(logprobs.shape)  --> torch.Size([2, 16])

--- redco.nn.logprobs
local logits = torch.tensor { { 2.5, 1.5, 0.5 }, { 0.5, 0.5, 0.5 } }
local labels = torch.tensor { 0, -100 }
print(nn.logprobs(logits, labels))  --> tensor([-0.4076,  0.0000])

--- redco.nn.lstm_cell
local params = nn.LSTMCell(16, 32)
local h, c = torch.zeros { 4, 32 }, torch.zeros { 4, 32 }
local inputs = torch.randn { 10, 4, 16 }  -- [length, batch, size]
for t = 0, 9 do h, c = nn.lstm_cell(params, inputs[t], h, c) end
print(h.shape, c.shape)  --> torch.Size([4, 32])  torch.Size([4, 32])

--- redco.nn.mlp
local params = nn.MLP { 64, 128, 10 }
local x = torch.randn { 32, 64 }
local logits = nn.mlp(params, x, { activation = torch.gelu })
print(logits.shape)  --> torch.Size([32, 10])

--- redco.nn.multihead_attention
local params = nn.MultiheadAttention(64)
local x, image = torch.randn { 2, 10, 64 }, torch.randn { 2, 49, 64 }
local options = { num_heads = 8, memory = image }  -- cross-attention
print(nn.multihead_attention(params, x, options).shape)
--> torch.Size([2, 10, 64])

--- redco.nn.rms_norm
local x = torch.tensor { { 3, 4 }, { 30, 40 } }:float()
print(nn.rms_norm(nn.RMSNorm(2), x))
--> tensor([[0.8485, 1.1314],
-->         [0.8485, 1.1314]])

--- redco.nn.init
local params = {
  weight = nn.init.xavier_uniform_(redco.parameter { 10, 64 }),
  bias = nn.init.zeros_(redco.parameter { 10 }),
}
local logits = nn.linear(params, torch.zeros { 32, 64 })
print(logits.shape)  --> torch.Size([32, 10])

--- redco.nn.init.constant_
print(nn.init.constant_(redco.parameter { 3 }, 0.5))
--> tensor([0.5000, 0.5000, 0.5000])

--- redco.nn.init.kaiming_normal_
local weight = redco.parameter { 64, 256 }  -- [out, in]
nn.init.kaiming_normal_(weight, { nonlinearity = "relu" })
print(weight:std(), (2 / 256) ^ 0.5)  --> tensor(0.08...)  0.088388347648318

--- redco.nn.init.kaiming_uniform_
local weight = redco.parameter { 64, 256 }  -- [out, in]
nn.init.kaiming_uniform_(weight, { a = math.sqrt(5) })
print(weight:abs():max():item() < 1 / math.sqrt(256))  --> true

--- redco.nn.init.normal_
local weight = redco.parameter { 1000, 64 }
nn.init.normal_(weight, { std = 0.02, generator = redco.Rng(42) })
print(("%.3f"):format(weight:std():item()))  --> 0.020

--- redco.nn.init.ones_
print(nn.init.ones_(redco.parameter { 3 }))  --> tensor([1., 1., 1.])

--- redco.nn.init.orthogonal_
local weight = nn.init.orthogonal_(redco.parameter { 4, 8 })
local product = weight:mm(weight.T)
print(torch.allclose(product, torch.eye(4), { atol = 1e-5 }))  --> true

--- redco.nn.init.trunc_normal_
local weight = redco.parameter { 1000, 64 }
nn.init.trunc_normal_(weight, { std = 0.02, a = -0.04, b = 0.04 })
print(weight:abs():max():item() <= 0.04)  --> true

--- redco.nn.init.uniform_
local weight = nn.init.uniform_(redco.parameter { 64, 64 }, { a = -1, b = 1 })
print(weight:min():item() >= -1, weight:max():item() < 1)  --> true  true

--- redco.nn.init.xavier_normal_
local weight = redco.parameter { 300, 100 }  -- [out, in]
nn.init.xavier_normal_(weight, { gain = 2 })
print(weight:std(), 2 * (2 / 400) ^ 0.5)
--> tensor(0.14...)  0.14142135623731

--- redco.nn.init.xavier_uniform_
local weight = nn.init.xavier_uniform_(redco.parameter { 300, 100 })
print(weight:abs():max():item() < math.sqrt(6 / 400))  --> true

--- redco.nn.init.zeros_
print(nn.init.zeros_(redco.parameter { 2, 2 }))
--> tensor([[0., 0.],
-->         [0., 0.]])

--- redco.nn.BatchNorm
local params = nn.BatchNorm(64)
print(params.weight.shape, params.running_var[0])
--> torch.Size([64])  tensor(1.)

--- redco.nn.batch_norm
local params = nn.BatchNorm(3)
local x = torch.randn { 8, 3, 32, 32 } + 5
local y = nn.batch_norm(params, x, { train = true })
print(y:mean():abs():lt(1e-5), params.running_mean:gt(0.4):all())
--> tensor(True)  tensor(True)
local z = nn.batch_norm(params, x)  -- with the running statistics

--- redco.nn.is_running_statistic
print(nn.is_running_statistic "blocks.1.norm.running_mean")  --> true
print(nn.is_running_statistic "blocks.1.norm.weight")        --> false

--- redco.nn.GroupNorm
print(nn.GroupNorm(64).weight.shape)  --> torch.Size([64])

--- redco.nn.group_norm
local params, x = nn.GroupNorm(64), torch.randn { 2, 64, 8, 8 }
print(nn.group_norm(params, x, { num_groups = 32 }).shape)
--> torch.Size([2, 64, 8, 8])

--- redco.nn.InstanceNorm
print(nn.InstanceNorm(64).bias.shape)  --> torch.Size([64])

--- redco.nn.instance_norm
local x = torch.randn { 2, 64, 8, 8 }
print(nn.instance_norm(nn.InstanceNorm(64), x).shape)
--> torch.Size([2, 64, 8, 8])

--- redco.nn.Conv3d
local params = nn.Conv3d(4, 8, 3)
print(params.weight.shape)  --> torch.Size([8, 4, 3, 3, 3])

--- redco.nn.conv3d
local params, x = nn.Conv3d(4, 8, 3), torch.randn { 1, 4, 6, 6, 6 }
print(nn.conv3d(params, x, { padding = 1 }).shape)
--> torch.Size([1, 8, 6, 6, 6])

--- redco.nn.ConvTranspose1d
local params = nn.ConvTranspose1d(8, 4, 2)
print(params.weight.shape)  --> torch.Size([8, 4, 2])

--- redco.nn.conv_transpose1d
local params = nn.ConvTranspose1d(8, 4, 2)
local x = torch.randn { 1, 8, 5 }
print(nn.conv_transpose1d(params, x, { stride = 2 }).shape)
--> torch.Size([1, 4, 10])

--- redco.nn.max_pool1d
local x = torch.randn { 1, 8, 6 }
print(nn.max_pool1d(x, 2).shape)  --> torch.Size([1, 8, 3])

--- redco.nn.adaptive_max_pool1d
local x = torch.randn { 1, 8, 6 }
print(nn.adaptive_max_pool1d(x, 1).shape)  --> torch.Size([1, 8, 1])

--- redco.nn.avg_pool1d
local x = torch.randn { 1, 8, 6 }
print(nn.avg_pool1d(x, 2).shape)  --> torch.Size([1, 8, 3])

--- redco.nn.adaptive_avg_pool1d
local x = torch.randn { 1, 8, 6 }
print(nn.adaptive_avg_pool1d(x, 1).shape)  --> torch.Size([1, 8, 1])

--- redco.nn.ConvTranspose2d
local params = nn.ConvTranspose2d(8, 4, 2)
print(params.weight.shape)  --> torch.Size([8, 4, 2, 2])

--- redco.nn.conv_transpose2d
local params = nn.ConvTranspose2d(8, 4, 2)
local x = torch.randn { 1, 8, 5, 5 }
print(nn.conv_transpose2d(params, x, { stride = 2 }).shape)
--> torch.Size([1, 4, 10, 10])

--- redco.nn.max_pool2d
local x = torch.randn { 1, 8, 6, 6 }
print(nn.max_pool2d(x, 2).shape)  --> torch.Size([1, 8, 3, 3])

--- redco.nn.adaptive_max_pool2d
local x = torch.randn { 1, 8, 6, 6 }
print(nn.adaptive_max_pool2d(x, 1).shape)  --> torch.Size([1, 8, 1, 1])

--- redco.nn.avg_pool2d
local x = torch.randn { 1, 8, 6, 6 }
print(nn.avg_pool2d(x, 2).shape)  --> torch.Size([1, 8, 3, 3])

--- redco.nn.adaptive_avg_pool2d
local x = torch.randn { 1, 8, 6, 6 }
print(nn.adaptive_avg_pool2d(x, 1).shape)  --> torch.Size([1, 8, 1, 1])

--- redco.nn.ConvTranspose3d
local params = nn.ConvTranspose3d(8, 4, 2)
print(params.weight.shape)  --> torch.Size([8, 4, 2, 2, 2])

--- redco.nn.conv_transpose3d
local params = nn.ConvTranspose3d(8, 4, 2)
local x = torch.randn { 1, 8, 5, 5, 5 }
print(nn.conv_transpose3d(params, x, { stride = 2 }).shape)
--> torch.Size([1, 4, 10, 10, 10])

--- redco.nn.max_pool3d
local x = torch.randn { 1, 8, 6, 6, 6 }
print(nn.max_pool3d(x, 2).shape)  --> torch.Size([1, 8, 3, 3, 3])

--- redco.nn.adaptive_max_pool3d
local x = torch.randn { 1, 8, 6, 6, 6 }
print(nn.adaptive_max_pool3d(x, 1).shape)  --> torch.Size([1, 8, 1, 1, 1])

--- redco.nn.avg_pool3d
local x = torch.randn { 1, 8, 6, 6, 6 }
print(nn.avg_pool3d(x, 2).shape)  --> torch.Size([1, 8, 3, 3, 3])

--- redco.nn.adaptive_avg_pool3d
local x = torch.randn { 1, 8, 6, 6, 6 }
print(nn.adaptive_avg_pool3d(x, 1).shape)  --> torch.Size([1, 8, 1, 1, 1])

--- redco.nn.EmbeddingBag
print(nn.EmbeddingBag(100, 16).weight.shape)  --> torch.Size([100, 16])

--- redco.nn.embedding_bag
local params = nn.EmbeddingBag(100, 16)
local words = torch.tensor { { 5, 7, 9 }, { 8, 0, 0 } }  -- 0 pads
print(nn.embedding_bag(params, words, { padding_idx = 0 }).shape)
--> torch.Size([2, 16])

--- redco.nn.RNNCell
local params = nn.RNNCell(16, 32)
print(params.weight_ih.shape, params.weight_hh.shape)
--> torch.Size([32, 16])  torch.Size([32, 32])

--- redco.nn.rnn_cell
local params, h = nn.RNNCell(16, 32), torch.zeros { 4, 32 }
local inputs = torch.randn { 10, 4, 16 }  -- [length, batch, size]
for t = 0, 9 do h = nn.rnn_cell(params, inputs[t], h) end
print(h.shape)  --> torch.Size([4, 32])

--- redco.nn.RNN
local params = nn.RNN(16, 32, { num_layers = 2 })
print(params.weight_ih_l0.shape, params.weight_ih_l1.shape)
--> torch.Size([32, 16])  torch.Size([32, 32])

--- redco.nn.GRU
local params = nn.GRU(16, 32, { num_layers = 2 })
print(params.weight_ih_l0.shape, params.weight_ih_l1.shape)
--> torch.Size([96, 16])  torch.Size([96, 32])

--- redco.nn.LSTM
local params = nn.LSTM(16, 32, { num_layers = 2 })
print(params.weight_ih_l0.shape, params.weight_ih_l1.shape)
--> torch.Size([128, 16])  torch.Size([128, 32])

--- redco.nn.rnn
local params, x = nn.RNN(16, 32), torch.randn { 4, 10, 16 }
local y, h = nn.rnn(params, x)
print(y.shape, h.shape)  --> torch.Size([4, 10, 32])  torch.Size([1, 4, 32])

--- redco.nn.gru
local params = nn.GRU(16, 32, { bidirectional = true })
local y, h = nn.gru(params, torch.randn { 4, 10, 16 })
print(y.shape, h.shape)  --> torch.Size([4, 10, 64])  torch.Size([2, 4, 32])

--- redco.nn.lstm
local params = nn.LSTM(16, 32, { num_layers = 2 })
local y, h, c = nn.lstm(params, torch.randn { 4, 10, 16 })
print(y.shape, c.shape)  --> torch.Size([4, 10, 32])  torch.Size([2, 4, 32])
-- The sequence continues from the last state.
local more = nn.lstm(params, torch.randn { 4, 10, 16 }, { h = h, c = c })
print(more.shape)  --> torch.Size([4, 10, 32])

--- redco.nn.l1_loss
local x, y = torch.tensor { 1.5, -1 }, torch.tensor { 0.5, 1 }
print(nn.l1_loss(x, y))  --> tensor(1.5000)

--- redco.nn.mse_loss
local x, y = torch.tensor { 1.5, -1 }, torch.tensor { 0.5, 1 }
print(nn.mse_loss(x, y))  --> tensor(2.5000)

--- redco.nn.smooth_l1_loss
local x, y = torch.tensor { 1.5, -1 }, torch.tensor { 0.5, 1 }
print(nn.smooth_l1_loss(x, y, { beta = 0.5 }))  --> tensor(1.2500)

--- redco.nn.huber_loss
local x, y = torch.tensor { 1.5, -1 }, torch.tensor { 0.5, 1 }
print(nn.huber_loss(x, y, { delta = 0.5 }))  --> tensor(0.6250)

--- redco.nn.soft_margin_loss
local x, y = torch.tensor { 1.5, -1.5 }, torch.tensor { 1, -1 }
print(nn.soft_margin_loss(x, y))  --> tensor(0.2014)

--- redco.nn.binary_cross_entropy
local x, y = torch.tensor { 0.9, 0.2 }, torch.tensor { 1, 0 }:float()
print(nn.binary_cross_entropy(x, y))  --> tensor(0.1643)

--- redco.nn.binary_cross_entropy_with_logits
local x, y = torch.tensor { 2.2, -1.4 }, torch.tensor { 1, 0 }:float()
print(nn.binary_cross_entropy_with_logits(x, y))  --> tensor(0.1628)

--- redco.nn.nll_loss
local x = torch.tensor { { 0.2, 0.8 }, { 0.7, 0.3 } }:log()
local y = torch.tensor { 1, 0 }
print(nn.nll_loss(x, y))  --> tensor(0.2899)

--- redco.nn.kl_div
local x = torch.tensor { { 0.2, 0.8 } }:log()
local y = torch.tensor { { 0.5, 0.5 } }
print(nn.kl_div(x, y, { reduction = "batchmean" }))  --> tensor(0.2231)

--- redco.nn.poisson_nll_loss
local x, y = torch.tensor { 1.5, 0.1 }, torch.tensor { 4, 1 }
print(nn.poisson_nll_loss(x, y))  --> tensor(-0.2566)

--- redco.nn.gaussian_nll_loss
local x, y = torch.tensor { 1.5, -1 }, torch.tensor { 0.5, 1 }
print(nn.gaussian_nll_loss(x, y, torch.ones { 2 }))  --> tensor(1.2500)

--- redco.nn.hinge_embedding_loss
local x, y = torch.tensor { 0.5, 0.2 }, torch.tensor { 1, -1 }
print(nn.hinge_embedding_loss(x, y))  --> tensor(0.6500)

--- redco.nn.margin_ranking_loss
local x, y = torch.tensor { 1.5, -1 }, torch.tensor { 0.5, 1 }
local target = torch.tensor { 1, -1 }
print(nn.margin_ranking_loss(x, y, target, { margin = 2 }))
--> tensor(0.5000)

--- redco.nn.cosine_embedding_loss
local x, y = torch.tensor { { 1.5, 0 } }, torch.tensor { { 1.5, 1.5 } }
print(nn.cosine_embedding_loss(x, y, torch.tensor { 1 }))  --> tensor(0.2929)

--- redco.nn.triplet_margin_loss
local x, y = torch.tensor { { 1.5, 0 } }, torch.tensor { { 1.5, 1.5 } }
print(nn.triplet_margin_loss(x, y, -x))  --> tensor(0.)

--- redco.nn.multi_margin_loss
local x, y = torch.tensor { { 0.1, 0.9, 0.5 } }, torch.tensor { 1 }
print(nn.multi_margin_loss(x, y))  --> tensor(0.2667)

--- redco.nn.multilabel_margin_loss
local x = torch.tensor { { 0.1, 0.9, 0.5 } }
local y = torch.tensor { { 1, 2, -1 } }  -- the classes 1 and 2
print(nn.multilabel_margin_loss(x, y))  --> tensor(0.2667)

--- redco.nn.multilabel_soft_margin_loss
local x = torch.tensor { { 0.1, 0.9, 0.5 } }
local y = torch.tensor { { 0, 1, 1 } }:float()
print(nn.multilabel_soft_margin_loss(x, y))  --> tensor(0.5199)

--- redco.nn.ctc_loss
local log_probs = torch.zeros { 10, 1, 5 }:log_softmax(-1)
local targets = torch.tensor { { 1, 3 } }
print(nn.ctc_loss(log_probs, targets, { 10 }, { 2 }))  --> tensor(4.9449)

--- redco.nn.init.eye_
print(nn.init.eye_(torch.empty { 2, 3 }))
--> tensor([[1., 0., 0.],
-->         [0., 1., 0.]])

--- redco.nn.init.dirac_
local params = nn.Conv1d(2, 2, 3, { bias = false })
local x = torch.randn { 1, 2, 5 }
nn.init.dirac_(params.weight)
print(nn.conv1d(params, x, { padding = 1 }) == x)  --> true

--- redco.nn.init.sparse_
local weight = nn.init.sparse_(torch.empty { 10, 4 }, { sparsity = 0.3 })
print(weight:eq(0):sum(0))  --> tensor([3, 3, 3, 3])

--- redco.nn.init.calculate_gain
print(nn.init.calculate_gain "relu")  --> 1.4142135623731
