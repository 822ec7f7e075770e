-- A network of most layers of redco.nn, whose draws come from rng: batch, group and instance norm,
-- transposed convolution, pooling, bags of embeddings, a recurrent stack, distributions and
-- augmentations. Batch norm and mixup use the whole batch, which is split.
local redco = require "redco"
local nn, torch, augment = redco.nn, redco.torch, redco.augment
local distributions = redco.distributions

local width, n_words, n_bag, n_actions = 4, 11, 3, 2

local function make_params(generator)
  local new = { generator = generator }
  local head = nn.Linear(2 * width, 2 * n_actions, new)
  nn.init.normal_(head.weight, { std = 0.02, generator = generator })  -- a loss that falls steadily
  return {
    conv = nn.Conv2d(3, width, 3, { bias = false, generator = generator }),
    norm = nn.BatchNorm(width),
    up = nn.ConvTranspose2d(width, 2 * width, 2, new), group = nn.GroupNorm(2 * width),
    instance = nn.InstanceNorm(2 * width),
    bag = nn.EmbeddingBag(n_words, width, new),
    recurrent = nn.LSTM(2 * width, width, { num_layers = 2, generator = generator }),
    features = nn.BatchNorm(2 * width),
    head = head,
  }
end

local function forward(p, images, words, train, rng, rate)
  local y = nn.conv2d(p.conv, images, { padding = 1 })
  y = torch.relu(nn.batch_norm(p.norm, y, { train = train }))
  y = nn.max_pool2d(y, 2)
  y = nn.group_norm(p.group, nn.conv_transpose2d(p.up, y, { stride = 2 }), { num_groups = 2 })
  -- The square keeps the gradient of the group norm's bias, which another norm would remove.
  y = nn.avg_pool2d(nn.instance_norm(p.instance, y:square()):tanh(), { 2, 1 })
  y = y:mean { 2 }:transpose(1, 2)
  local steps, h = nn.lstm(p.recurrent, y, { dropout = rate, train = train, rng = rng })
  local bag = nn.embedding_bag(p.bag, words, { padding_idx = 0 })
  local features = torch.cat({ steps:mean(1), bag }, -1) + h:sum() / 1000
  return nn.linear(p.head, nn.batch_norm(p.features, features, { train = train }))
end

return function(generator, options)
  local examples = {}
  for i = 1, options.n_examples do
    examples[i] = {
      image = torch.rand({ 3, 4, 4 }, { generator = generator, dtype = options.dtype }),
      words = torch.randint(n_words, { n_bag }, { generator = generator }),
      target = 2 + torch.rand({ n_actions }, { generator = generator, dtype = options.dtype }) / 9,
    }
  end
  return {
    params = make_params(generator),
    examples = examples,
    accumulate = 1,
    is_frozen = nn.is_running_statistic,
    collate_fn = redco.data.default_collate,
    loss_fn = function(rng, _, params, batch, train)
      local images, target = batch.image, batch.target
      if train and augment then
        images = augment.random_crop(images, { padding = 1, rng = rng })
        images = augment.random_horizontal_flip(images, { rng = rng })
        images = augment.color_jitter(images, { brightness = 0.2, contrast = 0.2,
          saturation = 0.2, rng = rng })
        images, target = augment.mixup(images, target, { alpha = 0.4, rng = rng })
      end
      local out = forward(params, images, batch.words, train, rng, options.dropout)
      local loc, scale = out:narrow(1, 0, n_actions), torch.softplus(out:narrow(1, n_actions, 2))
      local policy = distributions.Independent(distributions.TanhNormal(loc, scale + 0.1), 1)
      local action, log_prob = policy:rsample_and_log_prob { rng = rng }
      local prior = distributions.Independent(
        distributions.Normal(torch.zeros_like(loc), torch.ones_like(loc)), 1)
      local bits = distributions.Bernoulli { logits = loc }
      local drawn = bits:sample { rng = rng }
      local classes = distributions.Categorical { logits = out }
      local class = classes:sample { rng = rng }
      local kl = distributions.kl_divergence(
        distributions.Independent(distributions.Normal(loc, scale + 0.1), 1), prior)
      return 0.01 * nn.mse_loss(action, target) + nn.huber_loss(loc, target)
        + (0.01 * (log_prob + kl - classes:entropy() - classes:log_prob(class))
          - 0.01 * bits:log_prob(drawn):sum(-1)):mean()
    end,
    pred_fn = function(_, params, batch)
      return forward(params, batch.image, batch.words, false, nil, 0)
    end,
  }
end
