-- A small UNet of Stable Diffusion: residual blocks and attention to a text, at two sizes.
local redco = require "redco"
local torch = redco.torch

return function(generator, options)
  local unet = redco.diffusion.from_config({ _class_name = "UNet2DConditionModel", sample_size = 8,
    block_out_channels = { 16, 32 }, layers_per_block = 1, norm_num_groups = 8,
    attention_head_dim = 4, cross_attention_dim = 24,
    down_block_types = { "CrossAttnDownBlock2D", "DownBlock2D" },
    up_block_types = { "UpBlock2D", "CrossAttnUpBlock2D" },
  }, { generator = generator, dtype = options.dtype })
  local new = { generator = generator, dtype = options.dtype }
  local examples = {}
  for i = 1, options.n_examples do
    examples[i] = { sample = torch.randn({ 4, 8, 8 }, new), text = torch.randn({ 5, 24 }, new) }
  end
  return {
    params = unet.params,
    params_sharding_rules = unet.family.sharding_rules(unet.params, ""),
    examples = examples,
    collate_fn = function(batch)
      local samples, texts = {}, {}
      for i, example in ipairs(batch) do samples[i], texts[i] = example.sample, example.text end
      return { sample = torch.stack(samples), text = torch.stack(texts) }
    end,
    loss_fn = function(_, _, params, batch)
      return (unet.forward(params, batch.sample, 500, batch.text) - batch.sample):square():mean()
    end,
  }
end
