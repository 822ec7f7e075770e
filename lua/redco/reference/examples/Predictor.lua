--- redco.Predictor
local predictor = redco.Predictor {
  deployer = redco.Deployer { seed = 42 },
  collate_fn = function(examples) return { x = torch.stack(examples) } end,
  pred_fn = function(rng, p, batch) return nn.mlp(p, batch.x):softmax(-1) end,
}

--- Predictor:predict (after redco.Predictor)
local preds = predictor:predict {
  examples = torch.randn { 100, 8 }, params = nn.MLP { 8, 16, 3 },
  per_device_batch_size = 32,
}
print(#preds, preds[1].shape)  --> 100  torch.Size([3])
